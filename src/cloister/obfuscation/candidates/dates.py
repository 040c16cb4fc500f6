"""Dates that the calendar has, spelt as the secret is. A date's cell is its year and weekday; where these are too few,
half a year. A month's is two years; a year's twenty. Cells end with LAST_YEAR: few texts name a later one."""

import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import NamedTuple

from cloister.obfuscation.candidates.base import POOL_VALUES, Around, Pool
from cloister.obfuscation.candidates.cells import Slot, side_by_side
from cloister.obfuscation.candidates.clock import clock_slots
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 48
LAST_YEAR = 2026
_SOME_YEAR = 2024  # stands for one that is not said; it has 29 February
_MONTHS = {
    "english": "january february march april may june july august september october november december",
    "short": "jan feb mar apr may jun jul aug sep oct nov dec",
    "sept": "jan. feb. mar. apr. may. jun. jul. aug. sept oct. nov. dec.",
    "german": "januar februar märz april mai juni juli august september oktober november dezember",
    "french": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "spanish": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "italian": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
}
_WEEKDAYS = {
    "english": "monday tuesday wednesday thursday friday saturday sunday",
    "short": "mon tue wed thu fri sat sun",
    "german": "montag dienstag mittwoch donnerstag freitag samstag sonntag",
    "french": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "spanish": "lunes martes miércoles jueves viernes sábado domingo",
}
MONTHS = {language: tuple(words.split()) for language, words in _MONTHS.items()}
WEEKDAYS = {language: tuple(words.split()) for language, words in _WEEKDAYS.items()}
_FILLERS = frozenset(("the", "of", "de", "del", "le", "den", "der", "am"))
_TOKEN = re.compile(r"[0-9]+|[^\W\d_]+|.", re.DOTALL)
_NUMERIC = re.compile(r"(?P<one>[0-9]{1,2})(?P<sign>[/.-])(?P<two>[0-9]{1,2})(?:(?P=sign)(?P<year>[0-9]{4}|[0-9]{2}))?")
_ISO = re.compile(r"(?P<year>[0-9]{4})(?P<sign>[-/.]?)(?P<month>[0-9]{2})(?P=sign)(?P<day>[0-9]{2})")
_MONTH_YEAR = re.compile(r"(?P<month>[0-9]{1,2})(?P<sign>[/.-])(?P<year>[0-9]{4})")
_CLOCK = re.compile(
    r"(?P<date>.*?)(?P<gap>[T ,]*(?: at )?)(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)(?P<end>[^:]{0,6})", re.DOTALL
)


class Field(NamedTuple):
    """`width` of a number: 1 digit, 2, or 2 of which the first is 0."""

    name: str  # day, month, year, weekday, month-word, ordinal
    width: int | str = 0


class Reading(NamedTuple):
    style: tuple[str | Field, ...]
    day: date


class Dates:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if not 2 < len(secret) <= MAX_CHARACTERS:
            return None
        if found := _CLOCK.fullmatch(secret):
            return _with_clock(found)
        values = _values(secret)
        return Pool(values, "date in the same form") if len(values) > 1 else None


def _values(secret: str) -> tuple[str, ...]:
    if (read := _read(secret)) is None:
        return ()
    cell = _cell(read)
    written = dict.fromkeys(_write(read.style, day) for day in _days(read))
    matching = [
        each for each in written if (other := _read(each)) and other.style == read.style and _cell(other) == cell
    ]
    if secret not in matching:
        return ()
    parts = -(-len(matching) // POOL_VALUES)
    length = -(-len(matching) // parts)
    start = matching.index(secret) // length * length
    return tuple(matching[start : start + length])


def _with_clock(found: re.Match[str]) -> Pool | None:
    slots = clock_slots(found["clock"], found["end"].strip().lower() in ("am", "pm"))
    if slots is None:
        return None
    if found["date"]:
        days = _values(found["date"])
        length = len(slots[0].values)
        days = days[: len(days) // length * length]
        if found["date"] not in days:
            return None
        at = days.index(found["date"])
        start = at // length * length
        slots = [Slot(days[start : start + length], at - start), *slots]
    before, end = (1, found["end"]) if found["date"] else (0, found["end"])
    values = ["".join(one[:before]) + found["gap"] + ":".join(one[before:]) + end for one in side_by_side(slots)]
    return Pool(tuple(dict.fromkeys(values)), "time of day in the same form")


def _days(read: Reading) -> Iterator[date]:
    """All that may be of the cell, in order."""
    fields = {piece.name for piece in read.style if isinstance(piece, Field)}
    if fields <= {"year", "month", "month-word"}:
        step, first, last = 28, date(read.day.year - 20, 1, 1), date(read.day.year + 20, 12, 31)
    else:
        step, first, last = 1, date(read.day.year, 1, 1), date(read.day.year, 12, 31)
    day = first
    while day <= last:
        yield day
        day += timedelta(step)


def _cell(read: Reading) -> tuple[int, ...]:
    fields = {piece.name: piece.width for piece in read.style if isinstance(piece, Field)}
    year, months = read.day.year, fields.keys() & {"month", "month-word"}
    if not fields.keys() & {"day", "ordinal"}:
        if not months:
            return ((LAST_YEAR - year) // 20,) if "year" in fields else ()
        return ((LAST_YEAR - year) // 2,) if "year" in fields else ()
    if "year" not in fields:
        return ()
    few = any(fields.get(name) in (1, "02") for name in ("day", "ordinal")) or "sept" in str(fields.get("month-word"))
    return (year, read.day.month > 6) if few else (year, read.day.weekday())


def _write(style: tuple[str | Field, ...], day: date) -> str:
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
    return f"{number:02}" if form in ("02", "2+") else str(number)


def _ordinal(number: int) -> str:
    return "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


_SPELLINGS = {"title": str.capitalize, "lower": str.lower, "upper": str.upper}


def _read(text: str) -> Reading | None:
    """The only reading that a text has: what is written in this style is read as it again, or is not in the pool."""
    try:
        if found := _ISO.fullmatch(text):
            sign, year = found["sign"], Field("year", 4)
            style = (year, sign, Field("month", "2+"), sign, Field("day", "2+"))
            return Reading(style, date(int(found["year"]), int(found["month"]), int(found["day"])))
        if found := _MONTH_YEAR.fullmatch(text):
            month = Field("month", "2+" if len(found["month"]) == 2 else 1)
            return Reading((month, found["sign"], Field("year", 4)), date(int(found["year"]), int(found["month"]), 1))
        return _numeric(found) if (found := _NUMERIC.fullmatch(text)) else _in_words(text)
    except ValueError:  # the calendar has no such date
        return None


def _numeric(found: re.Match[str]) -> Reading:
    """Months go first, except before full stops and where the first number is too large for a month."""
    one, two, sign = found["one"], found["two"], found["sign"]
    names = ("day", "month") if sign == "." or int(one) > 12 else ("month", "day")
    number = dict(zip(names, (int(one), int(two)), strict=True))
    both = len(one) == len(two) == 2
    style: list[str | Field] = []
    for name, digits in zip(names, (one, two), strict=True):
        style += [Field(name, "2+" if both else len(digits)), sign]
    if int(one) > 12 and sign != ".":
        style.insert(0, "")  # else a day of 12 or less would be of this style
    year = found["year"]
    style[-1:] = [sign, Field("year", len(year))] if year else []
    return Reading(tuple(style), date(_year(year) if year else _SOME_YEAR, number["month"], number["day"]))


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
    year, month = found.get("year", _SOME_YEAR), found.get("month-word", 1)
    if "weekday" in found and not ({"year", "month-word"} <= found.keys() and {"day", "ordinal"} & found.keys()):
        if len(found) > 1:  # of which year is not known: it stays
            style = [
                tokens[place] if isinstance(one, Field) and one.name == "weekday" else one
                for place, one in enumerate(style)
            ]
        else:
            return Reading(tuple(style), date(_SOME_YEAR, 1, 1 + found["weekday"]))
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
