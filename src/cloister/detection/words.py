"""A text cut into words (runs of letters, of digits, one ideograph, one sign) with hashed features."""

import unicodedata
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BUCKETS = 1 << 16
FEATURES = 9  # of a fixed place in each word; trigrams come on top

_PLANE = 1 << 16
Codes = NDArray[np.uint32]
Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]
Kinds = NDArray[np.uint8]

SPACE, LETTER, DIGIT, SIGN, IDEOGRAPH = range(5)

_BASE = np.uint64(0x9E3779B97F4A7C15)
_POWERS_OF = 64  # characters of a word that its hash weighs separately

_WORD, _PREFIX2, _PREFIX3, _SUFFIX2, _SUFFIX3, _SUFFIX4, _SHAPE, _BEFORE, _TRIGRAM, _CASED = range(1, 11)


class Words(NamedTuple):
    """The trigrams of word i are `trigrams[first[i]:first[i + 1]]`, never none."""

    starts: Places
    ends: Places
    features: Places
    trigrams: Places
    first: Places


def split(text: str) -> Words:
    codes = np.frombuffer(text.encode("utf-32-le", "replace"), dtype=np.uint32)
    kinds, lower, scripts = (table[np.minimum(codes, _PLANE - 1)] for table in _tables())
    starts, ends = _bounds(kinds)
    if not len(starts):
        nothing = np.zeros(0, dtype=np.int64)
        return Words(nothing, nothing, nothing.reshape(0, FEATURES), nothing, np.zeros(1, dtype=np.int64))
    letters = np.where(kinds == DIGIT, np.uint64(ord("0")), lower.astype(np.uint64))
    letters[kinds == SPACE] = 0
    lengths = ends - starts
    padded = np.concatenate((letters, np.zeros(4, dtype=np.uint64)))
    word = _whole(letters, starts, lengths)
    cased = _cased(codes, kinds, lower, starts, lengths)
    columns = [
        _hash(_WORD, word),
        _hash(_PREFIX2, _from(padded, starts, lengths, 2)),
        _hash(_PREFIX3, _from(padded, starts, lengths, 3)),
        _hash(_SUFFIX2, _until(padded, starts, ends, 2)),
        _hash(_SUFFIX3, _until(padded, starts, ends, 3)),
        _hash(_SUFFIX4, _until(padded, starts, ends, 4)),
        _hash(_SHAPE, _shape(codes, kinds, scripts, cased, starts, lengths)),
        _hash(_BEFORE, _before(codes, kinds, starts)),
        _hash(_CASED, word * np.uint64(4) + cased.astype(np.uint64)),
    ]
    trigrams, first = _trigrams(padded, starts, lengths)
    return Words(starts, ends, np.stack(columns, axis=1), trigrams, first)


def _bounds(kinds: Kinds) -> tuple[Places, Places]:
    alone = (kinds == SIGN) | (kinds == IDEOGRAPH)
    before = np.concatenate(([SPACE], kinds[:-1])).astype(np.uint8)
    starts = np.flatnonzero((kinds != SPACE) & (alone | (kinds != before)))
    after = np.concatenate((kinds[1:], [SPACE])).astype(np.uint8)
    ends = np.flatnonzero((kinds != SPACE) & (alone | (kinds != after))) + 1
    return starts, ends


def _hash(kind: int, values: Hashes) -> Places:
    mixed = (values + np.uint64(kind * 0xD6E8FEB86659FD93 % (1 << 64))) * _BASE
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(48)).astype(np.int64)


def _whole(letters: Hashes, starts: Places, lengths: Places) -> Hashes:
    word = np.repeat(starts, np.diff(starts, append=len(letters)))
    within = np.minimum(np.arange(starts[0], len(letters)) - word, _POWERS_OF - 1)
    weighted = letters[starts[0] :] * _powers()[within]
    return np.add.reduceat(weighted, starts - starts[0])


def _from(padded: Hashes, starts: Places, lengths: Places, count: int) -> Hashes:
    return _joined([np.where(lengths > place, padded[starts + place], 0) for place in range(count)])


def _until(padded: Hashes, starts: Places, ends: Places, count: int) -> Hashes:
    places = [ends - 1 - back for back in range(count)]
    return _joined([np.where(place >= starts, padded[np.maximum(place, 0)], 0) for place in places])


def _joined(letters: list[Hashes]) -> Hashes:
    joined = letters[0]
    for each in letters[1:]:
        joined = (joined << np.uint64(16)) | each
    return joined


def _cased(codes: Codes, kinds: Kinds, lower: Codes, starts: Places, lengths: Places) -> Places:
    capital = (codes != lower) & (kinds == LETTER)
    capitals = np.add.reduceat(capital.astype(np.int64), starts)
    return np.select([capitals == 0, capitals == lengths, (capitals == 1) & capital[starts]], [0, 1, 2], default=3)


def _shape(codes: Codes, kinds: Kinds, scripts: Kinds, cased: Places, starts: Places, lengths: Places) -> Hashes:
    """Kind, script, case, and about how long; of four digits, whether they may be a year."""
    year = (lengths == 4) & (codes[starts] - np.uint32(ord("1")) <= 1)
    kind = kinds[starts].astype(np.int64)
    long = np.where(kind == DIGIT, np.minimum(lengths, 20) + 32 * year, np.minimum(lengths, 4))
    shape: Hashes = (((kind * 16 + scripts[starts]) * 4 + cased) * 64 + long).astype(np.uint64)
    return shape


def _before(codes: Codes, kinds: Kinds, starts: Places) -> Hashes:
    """Nothing, a line's end, a space, or the character right before; and whether a sentence may begin here."""
    previous = np.where(starts > 0, codes[starts - 1], np.uint32(ord("\n")))
    gap = np.where(kinds[starts - 1] == SPACE, np.where(previous == ord("\n"), 1, 2), 3)
    gap[0] = 1 if starts[0] == 0 else gap[0]
    last = np.concatenate(([np.uint32(0)], codes[starts[1:] - 1 - (kinds[starts[1:] - 1] == SPACE)]))
    before: Hashes = (gap.astype(np.uint64) << np.uint64(32)) | last.astype(np.uint64) * _signs(last)
    return before


def _signs(codes: Codes) -> Hashes:
    """1 for signs, 0 for all else: a word of letters before this one has its own features."""
    signs: Hashes = (_tables().kinds[np.minimum(codes, _PLANE - 1)] == SIGN).astype(np.uint64)
    return signs


def _trigrams(padded: Hashes, starts: Places, lengths: Places) -> tuple[Places, Places]:
    counts = np.maximum(lengths - 2, 1)
    first = np.concatenate(([0], np.cumsum(counts)))
    place = np.repeat(starts - first[:-1], counts) + np.arange(first[-1])
    room: Places = np.repeat(starts + lengths, counts) - place
    joined = _joined([np.where(room > more, padded[place + more], 0) for more in range(3)])
    return _hash(_TRIGRAM, joined), first


class _Tables(NamedTuple):
    kinds: Kinds
    lower: Codes
    scripts: Kinds


@cache
def _powers() -> Hashes:
    powers = [1]
    for _ in range(_POWERS_OF - 1):
        powers.append(powers[-1] * 0x100000001B3 % (1 << 64))
    return np.array(powers, dtype=np.uint64)


@cache
def _tables() -> _Tables:
    kinds = np.full(_PLANE, SIGN, dtype=np.uint8)
    lower = np.arange(_PLANE, dtype=np.uint32)
    scripts = np.zeros(_PLANE, dtype=np.uint8)
    for code in range(_PLANE):
        letter = chr(code)
        if letter.isspace() or code == 0:
            kinds[code] = SPACE
        elif 0x3040 <= code < 0xA000 or 0xF900 <= code < 0xFB00 or 0x0E00 <= code < 0x1000:
            kinds[code] = IDEOGRAPH  # scripts without spaces: Han, kana, Thai, Lao, Tibetan
        elif letter.isdecimal():
            kinds[code] = DIGIT
        elif unicodedata.category(letter)[0] in "LM":
            kinds[code] = LETTER
        if len(small := letter.lower()) == 1:
            lower[code] = ord(small)
    for number, begin in enumerate(_SCRIPTS):
        scripts[begin:] = number
    return _Tables(kinds, lower, scripts)


# first code of each range of scripts
_SCRIPTS = (0, 0x0370, 0x0400, 0x0590, 0x0900, 0x0E00, 0x1100, 0x1200, 0x3000, 0x3100, 0xAC00, 0xD800)
