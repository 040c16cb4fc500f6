"""What the engine asks of vLLM: requests in, tokens out. Tests have another."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from cloister.messages.types import SamplingParams, TokenLogprob


class Made(NamedTuple):
    """Of one request in one step. `finish`: stop, length, cancelled or failed."""

    number: int
    tokens: tuple[int, ...]
    scores: tuple[TokenLogprob, ...] | None
    finish: str | None


class Core(ABC):
    vocabulary: int
    max_context: int
    blocks: int
    block_tokens: int

    @abstractmethod
    def add(self, number: int, prompt: Sequence[int], params: SamplingParams, most: int) -> None:
        """`most`: tokens of the answer."""

    @abstractmethod
    def abort(self, number: int) -> None: ...

    @abstractmethod
    def step(self) -> list[Made]: ...
