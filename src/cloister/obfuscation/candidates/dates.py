"""Dates that the calendar has, spelt as the secret is. A date's cell is its year and weekday; where these are too few,
half a year. A month's is two years; a year's twenty. Cells end with LAST_YEAR: few texts name a later one."""

import re
from collections.abc import Iterator
from datetime import date, timedelta

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.candidates.cells import Slot, block, side_by_side
from cloister.obfuscation.dates import LAST_YEAR, Field, Reading, read, write
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 48
BLOCK = 16  # neighbours in time: counts of both kinds in twelve hours are multiples of it
_SECONDS = tuple(f"{second:02}" for second in range(1, 60))
_CLOCK = re.compile(
    r"(?P<date>.*?)(?P<gap>[T ,]*(?: at )?)(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)(?P<end>[^:]{0,6})", re.DOTALL
)


class Dates:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        if not 2 < len(secret) <= MAX_CHARACTERS:
            return None
        if found := _CLOCK.fullmatch(secret):
            return _with_clock(found, around.most)
        values = _values(secret, around.most)
        return Pool(values, "date in the same form") if len(values) > 1 else None


def _values(secret: str, most: int) -> tuple[str, ...]:
    if (found := read(secret)) is None:
        return ()
    cell = _cell(found)
    written = dict.fromkeys(write(found.style, day) for day in _days(found))
    matching = [
        each for each in written if (other := read(each)) and other.style == found.style and _cell(other) == cell
    ]
    if secret not in matching:
        return ()
    parts = -(-len(matching) // most)
    length = -(-len(matching) // parts)
    start = matching.index(secret) // length * length
    return tuple(matching[start : start + length])


def _with_clock(found: re.Match[str], most: int) -> Pool | None:
    slots = _clock_slots(found["clock"], found["end"].strip().lower() in ("am", "pm"))
    if slots is None:
        return None
    if found["date"]:
        days = _values(found["date"], max(most, 4 * BLOCK))
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


def _days(found: Reading) -> Iterator[date]:
    """All that may be of the cell, in order."""
    fields = {piece.name for piece in found.style if isinstance(piece, Field)}
    if fields <= {"year", "month", "month-word"}:
        step, first, last = 28, date(found.day.year - 20, 1, 1), date(found.day.year + 20, 12, 31)
    else:
        step, first, last = 1, date(found.day.year, 1, 1), date(found.day.year, 12, 31)
    day = first
    while day <= last:
        yield day
        day += timedelta(step)


def _cell(found: Reading) -> tuple[int, ...]:
    fields = {piece.name: piece.width for piece in found.style if isinstance(piece, Field)}
    year, months = found.day.year, fields.keys() & {"month", "month-word"}
    if not fields.keys() & {"day", "ordinal"}:
        if not months:
            return ((LAST_YEAR - year) // 20,) if "year" in fields else ()
        return ((LAST_YEAR - year) // 2,) if "year" in fields else ()
    if "year" not in fields:
        return ()
    few = any(fields.get(name) in (1, "02") for name in ("day", "ordinal")) or "sept" in str(fields.get("month-word"))
    return (year, found.day.month > 6) if few else (year, found.day.weekday())


def _clock_slots(text: str, twelve: bool) -> list[Slot] | None:
    """Slots of "9:30", "21:07:55". Full quarters of an hour are one kind; None for a time that no clock shows."""
    hour, minute, *second = text.split(":")
    padded = len(hour) == 2
    hours = [12, *range(1, 12)] if twelve else [*range(24)]
    full = int(minute) % 15 == 0
    minutes = [f"{each:02}" for each in range(60) if (each % 15 == 0) == full]
    times = [f"{each:02}:{other}" if padded else f"{each}:{other}" for each in hours for other in minutes]
    if (at := f"{hour}:{minute}") not in times or (second and int(second[0]) > 59):
        return None
    times = [each for each in times if len(each) == len(at)]
    place = times.index(at)
    start = place // BLOCK * BLOCK
    if start + BLOCK > len(times):
        return None
    slots = [Slot(tuple(times[start : start + BLOCK]), place - start)]
    if second and second[0] != "00":
        slots.append(block(_SECONDS, _SECONDS.index(second[0])))
    elif second:
        slots.append(Slot(("00",), 0, free=True))
    return slots
