"""Dates as they are written: read into a style and a day, moved, and written in that style again. `Dated` is a date
that moves with others: it may take digits, and leaves weekdays, times, and numbers without a year to `candidates`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal, NamedTuple, Self

from cloister.obfuscation.words import word_list

LAST_YEAR = 2026  # two digits of a later year are of the last century
SOME_YEAR = 2024  # stands for one that is not said; it has 29 February
MONTHS = {
    each: word_list(f"months-{each}") for each in ("english", "short", "sept", "german", "french", "spanish", "italian")
}
WEEKDAYS = {each: word_list(f"weekdays-{each}") for each in ("english", "short", "german", "french", "spanish")}
_FILLERS = frozenset(("the", "of", "de", "del", "le", "den", "der", "am"))
_TOKEN = re.compile(r"[0-9]+|[^\W\d_]+|.", re.DOTALL)
_NUMERIC = re.compile(r"(?P<one>[0-9]{1,2})(?P<sign>[/.-])(?P<two>[0-9]{1,2})(?:(?P=sign)(?P<year>[0-9]{4}|[0-9]{2}))?")
_ISO = re.compile(r"(?P<year>[0-9]{4})(?P<sign>[-/.]?)(?P<month>[0-9]{2})(?P=sign)(?P<day>[0-9]{2})")
_MONTH_YEAR = re.compile(r"(?P<month>[0-9]{1,2})(?P<sign>[/.-])(?P<year>[0-9]{4})")


class Field(NamedTuple):
    """`width` of a number: 1 digit, 2, or 2 of which the first is 0."""

    name: str  # day, month, year, weekday, month-word, ordinal
    width: int | str = 0


class Reading(NamedTuple):
    style: tuple[str | Field, ...]
    day: date


def write(style: tuple[str | Field, ...], day: date) -> str:
    return "".join(piece if isinstance(piece, str) else _written(piece, day) for piece in style)


def _written(field: Field, day: date) -> str:
    name, form = field
    match name:
        case "month-word" | "weekday":
            language, spelling = str(form).split("-")
            words = MONTHS[language] if name == "month-word" else WEEKDAYS[language]
            return _SPELLINGS[spelling](words[day.month - 1 if name == "month-word" else day.weekday()])
        case "year":
            return f"{day.year:04}"[-int(form) :]
        case "ordinal":
            return f"{day.day}{_ordinal(day.day)}"
    number = day.day if name == "day" else day.month
    return f"{number:02}" if form in ("02", "2+", "padded") else str(number)


def _ordinal(number: int) -> str:
    return "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


_SPELLINGS = {"title": str.capitalize, "lower": str.lower, "upper": str.upper}


def read(text: str, day_first: bool | None = None) -> Reading | None:
    """The only reading that a text has: what is written in this style is read as it again, or is not in a pool."""
    try:
        if found := _ISO.fullmatch(text):
            sign, year = found["sign"], Field("year", 4)
            style = (year, sign, Field("month", "2+"), sign, Field("day", "2+"))
            return Reading(style, date(int(found["year"]), int(found["month"]), int(found["day"])))
        if found := _MONTH_YEAR.fullmatch(text):
            month = Field("month", "2+" if len(found["month"]) == 2 else 1)
            return Reading((month, found["sign"], Field("year", 4)), date(int(found["year"]), int(found["month"]), 1))
        return _numeric(found, day_first) if (found := _NUMERIC.fullmatch(text)) else _in_words(text)
    except ValueError:  # the calendar has no such date
        return None


def _numeric(found: re.Match[str], day_first: bool | None) -> Reading:
    """Months go first by default, except before full stops and where a number is too large for a month."""
    one, two, sign = found["one"], found["two"], found["sign"]
    first = sign == "." or (int(one) > 12 if day_first is None else day_first)
    names = ("day", "month") if first else ("month", "day")
    number = dict(zip(names, (int(one), int(two)), strict=True))
    both = len(one) == len(two) == 2
    style: list[str | Field] = []
    for name, digits in zip(names, (one, two), strict=True):
        style += [Field(name, "2+" if both else len(digits)), sign]
    if int(one) > 12 and sign != ".":
        style.insert(0, "")  # else a day of 12 or less would be of this style
    year = found["year"]
    style[-1:] = [sign, Field("year", len(year))] if year else []
    return Reading(tuple(style), date(_year(year) if year else SOME_YEAR, number["month"], number["day"]))


def _year(digits: str) -> int:
    if len(digits) == 4:
        return int(digits)
    return int(digits) + (2000 if int(digits) <= LAST_YEAR % 100 else 1900)


def _in_words(text: str) -> Reading | None:
    """At most one of each field; at least one; other words than fillers are no date."""
    tokens = _TOKEN.findall(text)
    style: list[str | Field] = []
    found: dict[str, int] = {}
    for place, token in enumerate(tokens):
        field, number = _field(token, place, tokens)
        if field is None and (token[0].isalnum() and token.lower() not in (*_FILLERS, "st", "nd", "rd", "th")):
            return None
        if field is not None and field.name in found:
            return None
        if field is not None:
            found[field.name] = number
        if not (
            token in ("st", "nd", "rd", "th") and place and isinstance(style[-1], Field) and style[-1].name == "ordinal"
        ):
            style.append(token if field is None else field)
    if not found or {"day", "ordinal"} <= found.keys() or ({"day"} == found.keys()):
        return None
    year, month = found.get("year", SOME_YEAR), found.get("month-word", 1)
    if "weekday" in found and not ({"year", "month-word"} <= found.keys() and {"day", "ordinal"} & found.keys()):
        if len(found) > 1:  # of which year is not known: it stays
            style = [
                tokens[place] if isinstance(one, Field) and one.name == "weekday" else one
                for place, one in enumerate(style)
            ]
        else:
            return Reading(tuple(style), date(SOME_YEAR, 1, 1 + found["weekday"]))
    day = found.get("day", found.get("ordinal", 1))
    return Reading(tuple(style), date(year, month, day))


def _field(token: str, place: int, tokens: list[str]) -> tuple[Field | None, int]:
    low = token.lower()
    if token.isascii() and token.isdigit():
        if len(token) == 4:
            return (Field("year", 4), int(token)) if 1700 < int(token) < 2100 else (None, 0)
        if len(token) < 3 and place + 1 < len(tokens) and tokens[place + 1] in ("st", "nd", "rd", "th"):
            return Field("ordinal", len(token)), int(token)
        return (Field("day", "02" if token[0] == "0" else len(token)), int(token)) if len(token) < 3 else (None, 0)
    spelling = "lower" if token == low else "upper" if token.isupper() else "title" if token == low.capitalize() else ""
    for name, lists in (("month-word", MONTHS), ("weekday", WEEKDAYS)):
        for language in _languages(token, tokens):
            if spelling and low in lists.get(language, ()):
                return Field(name, f"{language}-{spelling}"), lists[language].index(low) + (name == "month-word")
    return None, 0


def _languages(token: str, tokens: list[str]) -> list[str]:
    """German has a full stop after the day, Spanish "de", French and Italian small letters."""
    first = (
        "spanish"
        if "de" in tokens
        else "german"
        if ". " in "".join(tokens) and token[0].isupper() and tokens[0].isdigit()
        else ""
    )
    first = first or ("french" if token.islower() else "english")
    return [first, *(language for language in MONTHS if language != first)]


Kind = Literal["year", "month", "day"]
_KINDS: dict[str, Kind] = {"year": "year", "month": "month", "month-word": "month", "day": "day", "ordinal": "day"}
_YEARS = range(1900, 2100)


@dataclass(frozen=True, slots=True, repr=False)
class Dated:
    """`fields` stand between the `pieces`; a number has one digit or two. `day_first`: which of two numbers."""

    pieces: tuple[str, ...]
    fields: tuple[Field, ...]
    year: int | None
    month: int | None
    day: int | None
    day_first: bool = False

    @classmethod
    def of(cls, text: str, day_first: bool = False) -> Self | None:
        """None where the text is no date of the calendar, or more than one."""
        if (found := read(text, day_first)) is None:
            return None
        pieces, fields = [""], []
        for part in found.style:
            if isinstance(part, str):
                pieces[-1] += part
            else:
                number = "bare" if part.width in (1, 2) else "padded"
                fields.append(Field(part.name, number if part.name in ("day", "month") else part.width))
                pieces.append("")
        names = {field.name for field in fields}
        numeric = "month" in names
        if names - _KINDS.keys() or "sept" in str(fields) or (numeric and (len(names) < 3 or "" in pieces[1:-1])):
            return None
        kinds = {_KINDS[name]: getattr(found.day, _KINDS[name]) for name in names}
        if "day" in kinds and "month" not in kinds:
            return None
        read_as = cls(tuple(pieces), tuple(fields), None, None, None, numeric and fields[0].name == "day")
        return read_as.at(kinds.get("year"), kinds.get("month"), kinds.get("day"))

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
        own, new = (self.year, self.month, self.day), (when.year, when.month, when.day)
        return self.at(*(None if one is None else other for one, other in zip(own, new, strict=True)))

    def __str__(self) -> str:
        style: tuple[str | Field, ...] = (self.pieces[0],)
        for field, piece in zip(self.fields, self.pieces[1:], strict=True):
            style += (field, piece)
        return write(style, self.on(2000))


def read_all(texts: Sequence[str]) -> list[Dated | None]:
    """Numbers are day first in all of them if they must be in one."""
    dated = [Dated.of(text) for text in texts]
    turned = [Dated.of(text, day_first=True) for text in texts]
    must = any(other is not None and one is None for one, other in zip(dated, turned, strict=True))
    return turned if must else dated
