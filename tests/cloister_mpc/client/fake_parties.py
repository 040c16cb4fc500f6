"""Parties played by the test: they compute a small made-up model in the clear, pass by pass, as real ones would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

VOCABULARY = 257
LAYERS = 4


def logits_after(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """A model: what follows depends on all that came before, most on the last two tokens."""
    seed = (tokens[-1] * 7 + (tokens[-2] if len(tokens) > 1 else 0) * 3 + len(tokens) // 8) % 1000
    return np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32)


def looping(tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """A model that says 0, 1, … 9, 0, 1, … for ever: prompt lookup guesses it."""
    logits = np.zeros(VOCABULARY, dtype=np.float32)
    logits[(tokens[-1] + 1) % 10] = 5
    return logits


class FakePasses:
    def __init__(self, parties: FakeParties, kind: str, layer_done: Callable[[int], None]) -> None:
        self._parties = parties
        self._kind = kind
        self._layer_done = layer_done
        self._prompt: list[int] = []
        self._computed: list[int] = []

    async def prefill(self, prompt: Sequence[int], noise: Any) -> Any:
        self._prompt = list(prompt)
        return await self._compute([list(prompt)], noise)

    async def step(self, at: int, tokens: Sequence[int], noise: Any) -> Any:
        assert at <= len(self._computed)
        self._computed[at:] = tokens
        self._parties.widths.append(len(tokens))
        histories = [self._prompt + self._computed[: at + i + 1] for i in range(len(tokens))]
        return await self._compute(histories, noise)

    async def close(self) -> None:
        self._parties.open_now -= 1

    async def _compute(self, histories: list[list[int]], noise: Any) -> Any:
        parties = self._parties
        for layer in range(1, LAYERS + 1):
            await asyncio.sleep(0)
            self._layer_done(layer)
        await parties.may_go_on.wait()
        if parties.fails is not None:
            raise parties.fails
        logits = np.stack([parties.model(history) for history in histories], axis=1)
        if self._kind == "logits":
            return logits
        assert (noise is None) == (self._kind == "token")
        return np.argmax(logits if noise is None else logits + noise, axis=0)


class FakeParties:
    shape = SimpleNamespace(layers=LAYERS, vocabulary=VOCABULARY)

    def __init__(self, model: Callable[[Sequence[int]], Any] = logits_after) -> None:
        self.model = model
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.fails: Exception | None = None
        self.open_now = 0
        self.opened: list[tuple[int, int, str]] = []
        self.widths: list[int] = []

    async def open(
        self, prompt_tokens: int, new_tokens: int, kind: str, layer_done: Callable[[int], None]
    ) -> FakePasses:
        self.opened.append((prompt_tokens, new_tokens, kind))
        self.open_now += 1
        return FakePasses(self, kind, layer_done)

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[int, ...]:
        """What a plain loop would answer."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(np.argmax(self.model(tokens))))
        return tuple(tokens[len(prompt) :])
