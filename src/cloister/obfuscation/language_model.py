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

    At first there is one, the empty one.
    """

    def first(self) -> LogProbs:
        """[1, vocabulary]: log-probabilities of the token after the beginning."""

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        """From now on there are these: the j-th is what the `parents[j]`-th was, and `tokens[j]` after it.

        Log-probabilities [rows, vocabulary] of the token after each, in order, some rows at a time; take them all.
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
