"""A runner without a model: logits are a hash of the prefix, read back through a paged cache.

A wrong block table, a position computed twice differently, or one never computed changes the hash, hence the output.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cloister.engine.runner import Piece, Runner, Wanted

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def entries(tokens: Sequence[int], start: int) -> np.ndarray:
    """What a position caches: a hash of its token and place."""
    positions = np.arange(start, start + len(tokens), dtype=np.uint64)
    return mix(np.asarray(tokens, dtype=np.uint64) + mix(positions * _GOLDEN + np.uint64(1)))


def logits_of(state: np.ndarray, vocabulary: int) -> torch.Tensor:
    """Logits in [-4, 4) for each prefix hash."""
    words = mix(state[:, None] + np.arange(vocabulary, dtype=np.uint64)[None, :] * _GOLDEN)
    return torch.from_numpy(((words >> np.uint64(40)).astype(np.float64) * 2.0**-21 - 4.0).astype(np.float32))


def expected_logits(tokens: Sequence[int], vocabulary: int) -> torch.Tensor:
    """The logits of every row of a sequence, computed in one piece without a cache."""
    return logits_of(np.cumsum(entries(tokens, 0)), vocabulary)


class FakeRunner(Runner):
    """Counts what it is asked; `fail_next` raises once."""

    def __init__(
        self, *, num_blocks: int = 64, vocabulary: int = 32, max_context: int = 256, block_tokens: int = 4
    ) -> None:
        self.vocabulary = vocabulary
        self.max_context = max_context
        self.block_tokens = block_tokens
        self.num_blocks = num_blocks
        self.cache = np.zeros(num_blocks * block_tokens, dtype=np.uint64)
        self.computed_tokens = 0
        self.most_rows = 0
        self.most_tokens = 0
        self.fail_next: Exception | None = None

    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        size = self.block_tokens
        states = [np.zeros(0, dtype=np.uint64)]
        for piece in pieces:
            end = piece.start + len(piece.tokens)
            assert piece.tokens and len(piece.blocks) == -(-end // size), "blocks must cover the piece exactly"
            slots = (np.asarray(piece.blocks)[:, None] * size + np.arange(size)).reshape(-1)[:end]
            self.cache[slots[piece.start :]] = entries(piece.tokens, piece.start)
            running = np.cumsum(self.cache[slots])[piece.start :]
            self.computed_tokens += len(piece.tokens)
            if piece.wanted is Wanted.ALL:
                states.append(running)
            elif piece.wanted is Wanted.LAST:
                states.append(running[-1:])
        logits = logits_of(np.concatenate(states), self.vocabulary)
        self.most_rows = max(self.most_rows, len(logits))
        self.most_tokens = max(self.most_tokens, sum(len(piece.tokens) for piece in pieces))
        return logits
