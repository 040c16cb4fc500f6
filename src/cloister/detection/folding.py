"""Text as detectors read it: folded, with a map back (SafeKV §VIII-A). Lookups over the whole text; case is kept."""

import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint32]
Positions = NDArray[np.int64]

_TABLE = 0x20000  # characters beyond two planes stay as they are; tags and variation selectors there are dropped
_INVISIBLE_PLANE = (0xE0000, 0xE01EF)

LOOKALIKES = dict(
    zip(
        "аАвВсСеЕёЁзЗіІїјЈкКмМнНоОрРѕЅтТуУхХһԁԛԝүѵԍбґ" + "αΑβΒεΕηΗιΙκΚμΜνΝοΟρΡτΤυΥχΧζΖγωϲ" + "օսհցոԱՍՏ" + "ꓐꓓꓮꓰꓲꓳꓢꓔ",
        "aAbBcCeEeE33iIijJkKmMhHoOpPsStTyYxXhdqwyvG6r" + "aAbBeEnHiIkKuMvNoOpPtTuYxXzZywc" + "ouhgnUUS" + "BDAEIOST",
        strict=True,
    )
)  # letters that pass for Latin ones, undone in words that have Latin letters too (UTS #39)

_DROPPED_CATEGORIES = {"Mn", "Me", "Cf"}
_KEPT_CONTROLS = "\t\n\r"


class _Tables(NamedTuple):
    first: Codes
    length: NDArray[np.int64]
    longer: dict[int, str]
    lookalike: Codes


@dataclass(frozen=True, slots=True, repr=False)
class Folded:
    """`origin`: for each character of the folded text, its place in the original; one longer."""

    text: str
    origin: Positions | None

    def original(self, start: int, end: int) -> tuple[int, int]:
        """What was dropped inside or right behind the span belongs to it."""
        if self.origin is None:
            return start, end
        if end <= start:
            return int(self.origin[start]), int(self.origin[start])
        return int(self.origin[start]), int(self.origin[end])


def fold(text: str) -> Folded:
    if text.isascii():
        return Folded(text, None)
    tables = _tables()
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    if codes.max() < _TABLE:
        out, lengths = tables.first[codes], tables.length[codes]
    else:
        near, beyond = np.minimum(codes, _TABLE - 1), codes >= _TABLE
        out, lengths = np.where(beyond, codes, tables.first[near]), np.where(beyond, 1, tables.length[near])
        lengths[(codes >= _INVISIBLE_PLANE[0]) & (codes <= _INVISIBLE_PLANE[1])] = 0
    origin = None
    if (lengths != 1).any():
        origin = np.append(np.repeat(np.arange(len(codes)), lengths), len(codes))
        out = np.repeat(out, lengths)
        if (lengths > 1).any():
            _expand(out, codes, lengths, tables.longer)
    _unmask(out, tables.lookalike)
    return Folded(out.astype("<u4").tobytes().decode("utf-32-le", "replace"), origin)


def _expand(out: Codes, codes: Codes, lengths: Positions, longer: dict[int, str]) -> None:
    ends = np.cumsum(lengths)
    for place in np.flatnonzero(lengths > 1):
        word = longer[int(codes[place])]
        out[ends[place] - len(word) : ends[place]] = [ord(letter) for letter in word]


def _unmask(out: Codes, lookalike: Codes) -> None:
    near = np.minimum(out, _TABLE - 1)
    suspects = lookalike[near] != 0
    if not suspects.any():
        return
    latin = ((out | 0x20) >= 0x61) & ((out | 0x20) <= 0x7A)
    inside = latin | suspects | ((out >= 0x370) & (out < 0x590)) | ((out >= 0x30) & (out <= 0x39))
    starts = np.flatnonzero(inside & ~np.concatenate(([False], inside[:-1])))
    word = np.cumsum(np.bincount(starts, minlength=len(out))) - 1
    has_latin = np.zeros(len(starts) + 1, dtype=bool)
    has_latin[word[latin]] = True
    change = suspects & has_latin[word]
    out[change] = lookalike[near[change]]


@cache
def _tables() -> _Tables:
    first = np.arange(_TABLE, dtype=np.uint32)
    length = np.ones(_TABLE, dtype=np.int64)
    lookalike = np.zeros(_TABLE, dtype=np.uint32)
    longer: dict[int, str] = {}
    for code in range(0x80, _TABLE):
        if 0x3400 <= code < 0xA000 or 0xAC00 <= code < 0xE000:  # ideographs, Hangul syllables, surrogates: as they are
            continue
        folded = _folded(chr(code))
        length[code] = len(folded)
        if len(folded) == 1:
            first[code] = ord(folded)
        elif folded:
            longer[code] = folded
    for one, latin in LOOKALIKES.items():
        lookalike[ord(one)] = ord(latin)
    return _Tables(first, length, longer, lookalike)


def _folded(letter: str) -> str:
    category = unicodedata.category(letter)
    if category in _DROPPED_CATEGORIES or (category == "Cc" and letter not in _KEPT_CONTROLS):
        return ""
    if category == "Zs":
        return " "
    if category == "Zl" or category == "Zp":
        return "\n"
    if (value := unicodedata.decimal(letter, None)) is not None:
        return str(value)
    if category == "Pd" or letter in "−":
        return "-"
    if letter in "‘’‚‛′＇ʼ":
        return "'"
    if letter in "ıŁłØøĐđß":
        return {"ı": "i", "Ł": "L", "ł": "l", "Ø": "O", "ø": "o", "Đ": "D", "đ": "d", "ß": "ss"}[letter]
    decomposed = unicodedata.normalize("NFKD", letter)
    bare = "".join(each for each in decomposed if unicodedata.category(each) not in _DROPPED_CATEGORIES)
    return bare or letter
