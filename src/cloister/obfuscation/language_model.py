"""What sampling asks of a model and of its tokenizer. The project's decoder has it (`engine/continuations.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

LogProbs = npt.NDArray[np.float32]


class Branches(Protocol):
    """Continuations of one beginning, all of one length, whose keys and values are computed once.

    At first there is one, the empty one. What is asked for is computed while its rows are taken, some at a time; take
    them all before anything else is asked for.
    """

    @property
    def left(self) -> int:
        """How many tokens are computed for the next rows, at most; 0 when all that were asked for are taken."""

    def first(self) -> Iterator[LogProbs]:
        """Log-probabilities [1, vocabulary] of the token after the beginning, after pieces [0, vocabulary] of it."""

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        """From now on there are these: the j-th is what the `parents[j]`-th was, and `tokens[j]` after it.

        Log-probabilities [rows, vocabulary] of the token after each, in order.
        """


class LanguageModel(Protocol):
    """A causal model."""

    vocabulary: int
    max_context: int

    def branches(self, beginning: Sequence[int], temperature: float) -> AbstractContextManager[Branches]:
        """Compute a beginning; its keys and values are wiped at the end."""


class SamplingTokenizer(Protocol):
    """The model's own tokenizer."""

    @property
    def special(self) -> Iterable[int]:
        """Tokens that are no text."""

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode(self, text: str, /) -> list[int]: ...

    def decode(self, tokens: Sequence[int], /) -> str: ...

    def render_chat(self, messages: list[dict[str, Any]], /) -> list[int]: ...
