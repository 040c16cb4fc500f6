"""An adversary without a model: lists of names, places, medications and words with their frequencies, a calendar, and
the checksums of numbers. It also judges what exists: the share of fakes that a list or the calendar knows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from math import log
from pathlib import Path

from cloister.detection.checksums import CHECKS
from cloister.obfuscation.tags import Category

UNKNOWN = -20.0  # ln: of a word in no list
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NUMERIC = re.compile(r"(\d{1,4})[-/.](\d{1,2})[-/.](\d{1,4})")
_WORDS = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_MONTH = rf"({'|'.join(_MONTHS)})(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?"
_WRITTEN = re.compile(rf"\b{_MONTH}\b\.?(?: (\d{{1,2}})\b)?", re.IGNORECASE)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_LISTED = (Category.NAME, Category.PLACE, Category.MEDICATION)
YEARS = range(1900, 2031)
TITLES = ("dr", "mr", "mrs", "ms", "miss", "md", "phd", "jr", "sr", "ii", "iii", "de", "la", "van", "von", "der")


class WordLists:
    """`folder` has words.txt, name.txt, place.txt, medication.txt: a value a line, with its count after a tab."""

    def __init__(self, folder: Path | None, words: Mapping[str, float]) -> None:
        lists = {stem: _counts(folder / f"{stem}.txt") if folder else {} for stem in ("words", *_LISTED)}
        self._words = lists.pop("words") or words
        self._lists = lists
        self._total = sum(self._words.values()) or 1.0

    def score(self, category: Category, value: str) -> float:
        """How plausible the value is of its kind: a logarithm."""
        if category in (Category.DATE, Category.AGE, Category.ID):
            return float(exists_by_rule(category, value))
        known, whole = self._lists.get(category) or {}, value.casefold()
        if whole in known:
            return log(known[whole] + 1)
        found = [self._of_word(word, known) for word in _telling(value)]
        return sum(found) / len(found) if found else UNKNOWN

    def exists(self, category: Category, value: str) -> bool | None:
        """Whether it is a real value of that kind; None where nothing here can tell."""
        if category in (Category.DATE, Category.AGE, Category.ID):
            return exists_by_rule(category, value)
        known = self._lists.get(category) or {}
        words = _telling(value)
        if known and words:
            return value.casefold() in known or all(word in known for word in words)
        return all(word in self._words for word in words) if words else None

    def _of_word(self, word: str, known: Mapping[str, float]) -> float:
        if word in known:
            return log(known[word] + 1)
        return UNKNOWN if known or word not in self._words else log(self._words[word] / self._total)


def exists_by_rule(category: Category, value: str) -> bool:
    if category is Category.AGE:
        return value.isascii() and value.isdigit() and 0 < int(value) < 110
    return is_date(value) if category is Category.DATE else is_number(value)


def is_date(value: str) -> bool:
    """A day of the calendar in a year that someone now alive could mean; a month, a year, or a weekday."""
    years = [int(year) for year in re.findall(r"\b\d{4}\b", value)]
    if any(year not in YEARS for year in years):
        return False
    if found := _NUMERIC.search(value):
        first, second, third = map(int, found.groups())
        if first > 31:
            return _is_day(first, second, third)
        year = third if third > 99 else 2000 + third
        return _is_day(year, first, second) or _is_day(year, second, first)
    if found := _WRITTEN.search(value):
        return _is_day((years or [2024])[0], _MONTHS.index(found[1].lower()) + 1, int(found[2] or 1))
    return bool(years) or value.casefold() in _WEEKDAYS


def is_number(value: str) -> bool:
    """The form has no checksum, or it holds: Luhn for cards (ISO 7812), ISO 7064 for IBANs, areas of SSNs."""
    plain = re.sub(r"[ -]", "", value).upper()
    if re.fullmatch(r"[A-Z]{2}\d{2}[A-Z0-9]{11,30}", plain):
        return CHECKS["iban"](plain)
    if re.fullmatch(r"\d{3}-\d{2}-\d{4}", value):
        return CHECKS["us_ssn"](plain) and value[0] != "9"
    return CHECKS["luhn"](plain) if re.fullmatch(r"\d{13,19}", plain) else bool(re.search(r"\d", value))


def _is_day(year: int, month: int, day: int) -> bool:
    try:
        return bool(date(year, month, day))
    except ValueError:
        return False


def _telling(value: str) -> list[str]:
    return [word for each in _WORDS.findall(value) if (word := each.casefold()) not in TITLES and len(word) > 1]


def _counts(path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        value, _, count = line.partition("\t")
        found[value.casefold()] = max(found.get(value.casefold(), 0.0), float(count or 1))
    return found
