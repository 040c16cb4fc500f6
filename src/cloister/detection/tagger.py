"""Tier 2 (SafeKV §V-B.2): hashed features of words → three dilated convolutions → a category, or not private."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloister.detection.words import BUCKETS, FEATURES, Words, split
from cloister.errors import SetupError
from cloister.messages.controller_detector import Category

_CLASSES = ("NONE", "NAME", "LOCATION", "ORGANISATION", "TIME", "TRAIT", "NUMBER", "ACCOUNT", "SECRET")
CATEGORIES = tuple(Category[name] for name in _CLASSES)

_WIDTH = 5
_PIECE, _OVERLAP = 8192, 512  # characters of a piece of a long text, and of its neighbours: more than the nets see

Numbers = NDArray[np.float32]


class Tags(NamedTuple):
    """For each word: its span in the folded text, its probability to be private, and its likeliest private class."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    scores: Numbers
    classes: NDArray[np.int64]


class Calibration(NamedTuple):
    """Scores below `public` are public, from `private` on private; those between are uncertain."""

    public: float
    private: float


class Tagger:
    """`arrays` as `cloister_bench.tagger.train` writes them."""

    def __init__(self, arrays: dict[str, NDArray[np.generic]]) -> None:
        if not _fit(arrays):
            raise SetupError(
                "The tagger's weights are of another version.", hint="Train it: `cloister_bench.tagger.train`."
            )
        self._table = np.asarray(arrays["table"], dtype=np.int8)
        self._scale = np.asarray(arrays["scale"], dtype=np.float32)
        self._dilations = [int(each) for each in np.asarray(arrays["dilations"], dtype=np.int64)]
        layers = range(len(self._dilations))
        self._kernels = [np.asarray(arrays[f"kernel{number}"], dtype=np.float32) for number in layers]
        self._biases = [np.asarray(arrays[f"bias{number}"], dtype=np.float32)[:, None] for number in layers]
        self._out = np.asarray(arrays["out"], dtype=np.float32)
        self._out_bias = np.asarray(arrays["out_bias"], dtype=np.float32)
        known = np.asarray(arrays.get("features", np.full(len(self._out), FEATURES)), dtype=np.int64)
        units = self._table.shape[1] // len(self._out)
        self._columns = [int((known > feature).sum()) * units for feature in range(FEATURES)]
        public, private = np.asarray(arrays.get("thresholds", np.array([0.5, 0.9])), dtype=np.float64).tolist()
        self.calibration = Calibration(public, private)

    def tag(self, text: str) -> Tags:
        if len(text) <= _PIECE + 2 * _OVERLAP:
            return self._tag(text)
        tags = []
        for start in range(0, len(text), _PIECE):
            first = max(0, start - _OVERLAP)
            one = self._tag(text[first : start + _PIECE + _OVERLAP])
            mine = (one.starts + first >= start) & (one.starts + first < start + _PIECE)
            tags.append(Tags(one.starts[mine] + first, one.ends[mine] + first, one.scores[mine], one.classes[mine]))
        return Tags(*(np.concatenate(each) for each in zip(*tags, strict=True)))

    def _tag(self, text: str) -> Tags:
        words = split(text)
        if not len(words.starts):
            return Tags(words.starts, words.ends, np.zeros(0, dtype=np.float32), words.starts)
        logits = self._logits(words)
        logits -= logits.max(axis=1, keepdims=True)
        likely = np.exp(logits)
        scores = likely[:, 1:].sum(axis=1) / likely.sum(axis=1)
        return Tags(words.starts, words.ends, scores, logits[:, 1:].argmax(axis=1) + 1)

    def _logits(self, words: Words) -> Numbers:
        """(net, word, unit). Nets without the last features come last."""
        counts = np.diff(words.first).astype(np.float32)
        trigrams = np.add.reduceat(self._table[words.trigrams], words.first[:-1], axis=0, dtype=np.float32)
        row = trigrams / counts[:, None]
        for feature, columns in enumerate(self._columns):
            row[:, :columns] += self._table[words.features[:, feature], :columns]
        row *= self._scale
        hidden: Numbers = np.ascontiguousarray(row.reshape(len(row), len(self._out), -1).swapaxes(0, 1))
        for number, dilation in enumerate(self._dilations):
            following = np.maximum(self._around(hidden, dilation) @ self._kernels[number] + self._biases[number], 0)
            hidden = following if number == 0 else hidden + following
        result: Numbers = (hidden @ self._out).mean(axis=0) + self._out_bias
        return result

    def _around(self, hidden: Numbers, dilation: int) -> Numbers:
        """Each row with its neighbours side by side; zeros beyond the ends."""
        reach, (nets, count, units) = dilation * (_WIDTH // 2), hidden.shape
        padded = np.zeros((nets, count + 2 * reach, units), dtype=np.float32)
        padded[:, reach : reach + count] = hidden
        places = range(0, _WIDTH * dilation, dilation)
        return np.concatenate([padded[:, place : place + count] for place in places], axis=2)


def _fit(arrays: dict[str, NDArray[np.generic]]) -> bool:
    if not {"scale", "dilations", "out"} <= arrays.keys() or arrays["out"].ndim != 3 or not arrays["out"].size:
        return False
    (nets, hidden, classes), columns = arrays["out"].shape, arrays["scale"].size
    shapes: dict[str, tuple[int, ...]] = {"table": (BUCKETS, columns), "out_bias": (len(CATEGORIES),)}
    for number in range(arrays["dilations"].size):
        units = hidden if number else columns // nets
        shapes |= {f"kernel{number}": (nets, _WIDTH * units, hidden), f"bias{number}": (nets, hidden)}
    fits = all(name in arrays and arrays[name].shape == shape for name, shape in shapes.items())
    return fits and classes == len(CATEGORIES) and columns % nets == 0


@cache
def shipped_tagger() -> Tagger:
    with files(__package__).joinpath("tagger.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return Tagger(dict(arrays))
