"""A model and a tokenizer small enough to compute by hand: words are tokens, and probabilities follow a rule."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from cloister.obfuscation.language_model import LogProbs

NAMES = [f"Name{chr(97 + at)}" for at in range(20)]
FAMILIES = [f"Family{chr(97 + at)}" for at in range(20)]
TOWNS = [f"Town{chr(97 + at)}" for at in range(12)]
END = "<|end|>"
WORDS = ["?", END, *(f"{lead}{word}" for lead in ("", " ") for word in (*NAMES, *FAMILIES, *TOWNS, "17", "18", "19"))]
_PIECE = re.compile(r" ?\w+|[^\w ]| +")


class WordTokenizer:
    """A word with the space before it is a token. Words that nobody foresaw get numbers as they come."""

    def __init__(self) -> None:
        self._words = list(WORDS)
        self._ids = {word: number for number, word in enumerate(self._words)}
        self.special = (self._ids[END],)
        self.vocabulary = len(WORDS)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [self._id(word) for word in _PIECE.findall(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, tokens)).decode()

    def token_bytes(self, token: int) -> bytes:
        return self._words[token].encode() if token < len(self._words) else b""

    def render_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.encode("".join(f"{one['role']}: {one['content']}\n" for one in messages))

    def _id(self, word: str) -> int:
        if word not in self._ids:
            self._ids[word] = len(self._words)
            self._words.append(word)
        return self._ids[word]


class RuleModel:
    """Log-probabilities from a table: of the last token, if it has a row there, else of any."""

    def __init__(self, vocabulary: int, seed: int = 0, max_context: int = 4096) -> None:
        self.vocabulary, self.max_context = vocabulary, max_context
        noise = np.random.default_rng(seed).normal(0, 0.5, (vocabulary + 1, vocabulary))
        self._table = noise - np.log(np.exp(noise).sum(axis=1, keepdims=True))
        self.begun = 0
        self.rows = 0
        self.batch = 7

    def logprob(self, tokens: Sequence[int], beginning: Sequence[int], temperature: float = 1.0) -> float:
        """Of tokens after a beginning, one by one."""
        before, total = beginning[-1], 0.0
        for token in tokens:
            total += float(self._row(before, temperature)[token])
            before = token
        return total

    @contextmanager
    def branches(self, beginning: Sequence[int], temperature: float) -> Iterator[RuleBranches]:
        self.begun += 1
        yield RuleBranches(self, list(beginning), temperature)

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        yield len(beginning)
        return [self.logprob(row, beginning) for row in rows]

    def _row(self, last: int, temperature: float) -> LogProbs:
        self.rows += 1
        row = self._table[min(last, self.vocabulary)] / temperature
        return (row - np.log(np.exp(row).sum())).astype(np.float32)


class RuleBranches:
    """Keeps each branch's last token."""

    def __init__(self, model: RuleModel, beginning: list[int], temperature: float) -> None:
        self._model, self._temperature = model, temperature
        self._last = [beginning[-1]]
        self.left = 0

    def first(self) -> Iterator[LogProbs]:
        self.left = 1
        return self._computed()

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        assert not self.left and all(0 <= parent < len(self._last) for parent in parents)
        self._last = [new[-1] for new in tokens]
        self.left = len(tokens)
        return self._computed()

    def _computed(self) -> Iterator[LogProbs]:
        for first in range(0, len(self._last), self._model.batch):
            rows = self._rows(self._last[first : first + self._model.batch])
            self.left -= len(rows)
            yield rows

    def _rows(self, last: Sequence[int]) -> LogProbs:
        return np.stack([self._model._row(each, self._temperature) for each in last])
