"""What sampling asks of a model and of its tokenizer. The project's decoder has it (`engine/continuations.py`)."""

from collections.abc import Iterable, Iterator, Sequence
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


class SamplingTokenizer(Protocol):
    @property
    def special(self) -> Iterable[int]:
        """Tokens that are no text."""

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode(self, text: str, /) -> list[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...
