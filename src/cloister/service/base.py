"""What a front process may ask of whatever computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from cloister.messages.generation import Ready, SamplingParams, Stats, Tokens


class Backend(ABC):
    """Computes tokens from tokens. The service process is one; tests have smaller ones."""

    @property
    @abstractmethod
    def ready(self) -> Ready:
        """What the service said of itself at start (context length, vocabulary…)."""

    @abstractmethod
    async def generate(
        self, tenant: str, prompt: tuple[int, ...], params: SamplingParams
    ) -> AsyncGenerator[Tokens, None]:
        """Return once the request is queued, with its stream of tokens; the last has `finish` set.

        Raises QueueFull, PromptTooLong, ServiceUnavailable… (from here or from the stream). Closing the stream
        (`aclose`) before its end cancels the request and frees what it held.
        """

    @abstractmethod
    async def stats(self) -> Stats:
        """Totals for /metrics and tests."""

    @abstractmethod
    async def close(self) -> None:
        """End the service and wait for it."""
