"""What sampling asks of a model (the project's decoder has it: `engine/continuations.py`) and of its tokenizer, and the
shapes of words: all λ+1 variants have the secret's, so it does not show which is real."""

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

LogProbs = npt.NDArray[np.float32]


class Branches(Protocol):
    """Continuations of one beginning, all of one length, computed once; at first one, the empty one. Rows are computed
    while they are taken: take them all before anything else is asked for."""

    @property
    def left(self) -> int:
        """How many tokens are computed for the next rows, at most; 0 when all that were asked for are taken."""

    def first(self) -> Iterator[LogProbs]:
        """Log-probabilities [1, vocabulary] of the token after the beginning, after pieces [0, vocabulary] of it."""

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        """The j-th is now the `parents[j]`-th with `tokens[j]` after it. Log-probabilities [rows, vocabulary]."""


class LanguageModel(Protocol):
    vocabulary: int
    max_context: int

    def branches(self, beginning: Sequence[int], temperature: float) -> AbstractContextManager[Branches]:
        """Compute a beginning; its keys and values are wiped at the end."""

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        """ln P of each row after the beginning. Yields, before each piece, how many tokens it has at most."""


class SamplingTokenizer(Protocol):
    @property
    def special(self) -> Iterable[int]:
        """Tokens that are no text."""

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode(self, text: str, add_special_tokens: bool = False, /) -> list[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...


Mask = npt.NDArray[np.bool_]


def shape_of(words: str) -> str:
    """Small letters in a row are one, capitals two: "Mrs. Ann Lee" is "Aa. Aa Aa", "ITalia" is "AAa", "3rd May 2019" is
    "0a Aa 0000". Other digits than 0 to 9 are signs."""
    kinds: list[str] = []
    for each in words:
        kind = "0" if each in "0123456789" else "A" if each.isupper() else "a" if each.isalpha() else each
        most = {"A": 2, "a": 1}.get(kind)
        if most is None or kinds[-most:] != [kind] * most:
            kinds.append(kind)
    return "".join(kinds)


class TokenShapes:
    """Computed at the first use."""

    def __init__(self, tokenizer: SamplingTokenizer, vocabulary: int) -> None:
        self._tokenizer, self._vocabulary = tokenizer, vocabulary
        self._of_token = np.zeros(0, dtype=np.int64)
        self._shapes: tuple[str, ...] = ()
        self._known: dict[tuple[str, str, bool], Mask] = {}

    @property
    def ready(self) -> bool:
        return bool(self._shapes)

    def _read_vocabulary(self) -> None:
        special = frozenset(self._tokenizer.special)
        numbers: dict[str, int] = {}
        self._of_token = np.zeros(self._vocabulary, dtype=np.int64)
        for token in range(self._vocabulary):
            text = "" if token in special else self._tokenizer.token_bytes(token).decode("utf-8", "replace")
            self._of_token[token] = numbers.setdefault(shape_of(text), len(numbers))
        self._shapes = tuple(numbers)

    def following(self, words: str, shape: str, last: bool) -> Mask:
        """The tokens after which the words begin as the shape does; if it is the `last` one, are of the shape."""
        if not self.ready:
            self._read_vocabulary()
        key = shape_of(words), shape, last
        if key not in self._known:
            if len(self._known) > 64:
                self._known.clear()
            fits = [bool(each) and _fits(_joined(key[0], each), shape, last) for each in self._shapes]
            self._known[key] = np.array(fits)[self._of_token]
        return self._known[key]


def _joined(one: str, other: str) -> str:
    return one[:-2] + shape_of(one[-2:] + other)


def _fits(found: str, shape: str, last: bool) -> bool:
    return found == shape if last else shape.startswith(found)
