"""Ages in years, months, weeks and days, in digits or words, of neighbouring years: no reader knows 36 from 41. Cells
of years grow with λ, as far as one time of life."""

import re

from cloister.obfuscation.candidates.base import Around, Pool
from cloister.obfuscation.index import Prf

MAX_CHARACTERS = 40
_SMALL_CELLS = ((2, 9), (10, 17), *((first, first + 15) for first in range(18, 114, 16)))
_YEARS = ((2, 17), (18, 49), (50, 81), (82, 97), (98, 113))
_FEW = 16  # values that are wanted where the small ones are enough
_CELLS = {"year": _YEARS, "month": ((2, 23),), "week": ((2, 25),), "day": ((2, 27),), "decade": ((2, 9),)}
_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
WORDS = (*_SMALL.split(), *(f"{ten}-{one}" if one else ten for ten in _TENS for one in ("", *_SMALL.split()[1:10])))
_UNITS = {
    "year": "years year yr yrs y yo y/o yo. jahre jährige jähriger ans años anni jahren jährig",
    "month": "months month mo mos monate mois meses",
    "week": "weeks week wk wks wochen semaines semanas",
    "day": "days day tage jours días",
    "decade": "s 's ties",
}
_UNIT = {word: unit for unit, words in _UNITS.items() for word in words.split()}
_AGE = re.compile(
    r"(?P<before>(?:aged?:? ?|early |mid[- ]|late |in (?:his|her|their) ){0,2})"
    rf"(?P<number>[0-9]{{1,3}}|{'|'.join(reversed(WORDS)).replace('-', '[- ]')})"
    r"(?P<after>(?P<gap>[- ]*)(?P<unit>[^\W\d]*(?:/o)?)\b(?:[- ](?:old|of age|years?|d'âge|alt|male|female|[MF]))?\.?)",
    re.IGNORECASE,
)


class Ages:
    def pool(self, secret: str, around: Around, draw: Prf) -> Pool | None:
        """The number alone changes: "47-year-old" becomes "38-year-old"."""
        if len(secret) > MAX_CHARACTERS or (found := _AGE.fullmatch(secret)) is None:
            return None
        number, unit = _number(found["number"]), _UNIT.get(found["unit"].lower(), "") if found["unit"] else "year"
        if number is None or not unit:
            return None
        if unit == "decade":
            if number % 10 or not found["number"].isdigit():
                return None
            number //= 10
        cells = _SMALL_CELLS if unit == "year" and around.wanted <= _FEW else _CELLS[unit]
        cell = next((range(first, last + 1) for first, last in cells if first <= number <= last), None)
        if cell is None:
            return None
        numbers = [_written(10 * each if unit == "decade" else each, found["number"]) for each in cell]
        spaced = " " in found["number"]  # "forty seven" is one of those in two words
        values = tuple(found["before"] + each + found["after"] for each in numbers if not spaced or " " in each)
        return Pool(values, f"age in {unit}s from {cell[0]} to {cell[-1]}") if secret in values else None


def _number(text: str) -> int | None:
    if text.isdigit():
        return int(text)
    low = text.lower().replace(" ", "-")
    return WORDS.index(low) if low in WORDS else None


def _written(number: int, like: str) -> str:
    """In the capitals of `like`; words of two parts have its hyphen or space, where it has one."""
    if like.isdigit():
        return str(number)
    word = WORDS[number].replace("-", " ") if " " in like else WORDS[number]
    return word.capitalize() if like[0].isupper() else word
