"""Dates as they are written: read into year, month and day, moved, and written in the same form again."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal, Self

_MONTHS = "january february march april may june july august september october november december"
MONTHS = tuple(_MONTHS.split()), tuple(month[:3] for month in _MONTHS.split())
_NUMERIC = re.compile(r"(?P<a>\d{1,4})(?P<sign>[/.-])(?P<b>\d{1,2})(?P=sign)(?P<c>\d{1,4})")
_TOKEN = re.compile(r"[A-Za-z]+|\d+(?:st|nd|rd|th)?(?![A-Za-z])")
_YEARS = range(1900, 2100)
PIVOT = 35  # two digits of a year up to here are of this century
Kind = Literal["year", "month", "day"]


@dataclass(frozen=True, slots=True, repr=False)
class Dated:
    """`fields` are what stands between the `pieces`, each with its own spelling. `day_first`: which of two numbers."""

    pieces: tuple[str, ...]
    fields: tuple[tuple[Kind, str], ...]
    year: int | None
    month: int | None
    day: int | None
    day_first: bool = False

    @classmethod
    def of(cls, text: str, day_first: bool = False) -> Self | None:
        """None where the text is no date of the calendar, or more than one."""
        found = _NUMERIC.fullmatch(text)
        return cls._of_words(text) if found is None else cls._of_numbers(found, day_first or "." in text)

    @classmethod
    def _of_numbers(cls, found: re.Match[str], day_first: bool) -> Self | None:
        a, b, c = found["a"], found["b"], found["c"]
        if len(a) == 4:
            order: tuple[Kind, ...] = ("year", "month", "day")
        elif len(a) <= 2 and len(c) in (2, 4):
            order = ("day", "month", "year") if day_first else ("month", "day", "year")
        else:
            return None
        padded = "padded" if not any(len(each) == 1 for each in (a, b)) else "bare"
        kinds = dict(zip(order, (a, b, c), strict=True))
        styles = {"year": str(len(kinds["year"])), "month": padded, "day": padded}
        pieces = ("", found["sign"], found["sign"], "")
        read = cls(pieces, tuple((kind, styles[kind]) for kind in order), None, None, None, day_first and len(a) < 4)
        return read.at(_full_year(kinds["year"]), int(kinds["month"]), int(kinds["day"]))

    @classmethod
    def _of_words(cls, text: str) -> Self | None:
        fields: list[tuple[Kind, str]] = []
        values: dict[Kind, int] = {}
        pieces, at = [], 0
        for found in _TOKEN.finditer(text):
            word = found[0].casefold()
            name = next((which for which, names in enumerate(MONTHS) if word in names), None)
            kind: Kind
            if name is not None:
                kind, value = "month", MONTHS[name].index(word) + 1
                style = f"{'short' if name else 'full'} {_case(found[0])}"
            elif word.isdigit() and len(word) == 4 and int(word) in _YEARS:
                kind, value, style = "year", int(word), "4"
            elif (number := re.match(r"\d{1,2}(?!\d)", word)) is not None:
                kind, value = "day", int(number[0])
                style = "padded" if word[0] == "0" else "ordinal" if not word.isdigit() else "bare"
            elif word in ("of", "the"):
                continue
            else:
                return None
            if kind in values:
                return None
            values[kind] = value
            fields.append((kind, style))
            pieces.append(text[at : found.start()])
            at = found.end()
        if not values or ("day" in values and "month" not in values):
            return None
        read = cls((*pieces, text[at:]), tuple(fields), None, None, None)
        return read.at(values.get("year"), values.get("month"), values.get("day"))

    @property
    def unit(self) -> Kind:
        return "day" if self.day is not None else "month" if self.month is not None else "year"

    def at(self, year: int | None, month: int | None, day: int | None) -> Self | None:
        """The same form; None where there is no such day, or it would be written as another one."""
        try:
            date(year or 2000, month or 1, day or 1)
        except ValueError:
            return None
        return replace(self, year=year, month=month, day=day) if year is None or year in _YEARS else None

    def on(self, year: int) -> date:
        """Its first day, in this year if it names none."""
        return date(self.year or year, self.month or 1, self.day or 1)

    def moved_to(self, when: date) -> Self | None:
        return self.at(
            None if self.year is None else when.year,
            None if self.month is None else when.month,
            None if self.day is None else when.day,
        )

    def __str__(self) -> str:
        shown = [self.pieces[0]]
        for (kind, style), piece in zip(self.fields, self.pieces[1:], strict=True):
            shown += [self._field(kind, style), piece]
        return "".join(shown)

    def _field(self, kind: Kind, style: str) -> str:
        value = {"year": self.year, "month": self.month, "day": self.day}[kind]
        assert value is not None
        if kind == "year":
            return f"{value:04}"[-int(style) :]
        if style == "ordinal":
            return f"{value}{_ending(value)}"
        if style in ("padded", "bare"):
            return f"{value:02}" if style == "padded" else str(value)
        length, case = style.split(" ")
        name = MONTHS[length == "short"][value - 1]
        return name.upper() if case == "upper" else name.capitalize() if case == "title" else name


def read_all(texts: Sequence[str]) -> list[Dated | None]:
    """Numbers are day first in all of them if they must be in one."""
    read = [Dated.of(text) for text in texts]
    turned = [Dated.of(text, day_first=True) for text in texts]
    must = any(other is not None and one is None for one, other in zip(read, turned, strict=True))
    return turned if must else read


def _full_year(digits: str) -> int:
    return int(digits) if len(digits) == 4 else int(digits) + (2000 if int(digits) <= PIVOT else 1900)


def _case(word: str) -> str:
    return "upper" if word.isupper() else "lower" if word.islower() else "title"


def _ending(day: int) -> str:
    return "th" if day in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
