"""A runner without a model: logits are a hash of the prefix, read back through a paged cache.

A wrong block table, a position computed twice differently, or one never computed changes the hash, hence the output.
Vaults are a dictionary of prompts: what of a prompt is not in the cache is read from there, for generated rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from cloister.compute import layout as compute_layout
from cloister.compute.base import LinkAsker
from cloister.compute.layout import Chunk, Layout, Wanted
from cloister.engine.runner import Runner

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
    """The logits of every row of a sequence, computed in one chunk without a cache."""
    return logits_of(np.cumsum(entries(tokens, 0)), vocabulary)


class Misused(BaseException):
    """The engine asked for what it must not. No Exception: the engine turns those into failed requests."""


def insist(so: bool, complaint: str) -> None:
    if not so:
        raise Misused(complaint)


class FakeRunner(Runner, LinkAsker):
    """Runner and links at once. Counts what it is asked; `fail_next` raises once; `break_next` breaks links during the
    next forward."""

    layers, heads, dim = 3, 2, 5

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        vocabulary: int = 32,
        max_context: int = 256,
        relative: bool = True,
        link_rows: int = 128,
    ) -> None:
        self.vocabulary = self.width = vocabulary
        self.max_context = max_context
        self.relative = relative
        self.capacity = link_rows
        self.asker = self
        self.block_tokens = compute_layout.BLOCK_TOKENS
        self.num_blocks = num_blocks
        self.tokens = np.full(num_blocks * self.block_tokens, -1, dtype=np.int64)
        self.rotations = np.full(num_blocks * self.block_tokens, -1, dtype=np.int64)
        self.vaults: dict[tuple[int, int], list[int]] = {}
        self.attached: dict[int, tuple[int, int]] = {}
        self.break_next: dict[int, str] = {}
        self._broken: dict[int, str] = {}
        self.most_link_rows = 0
        self.computed_tokens = 0
        self.most_rows = 0
        self.most_tokens = 0
        self.fail_next: Exception | None = None

    def wipe(self, blocks: Sequence[int]) -> None:
        for cells in (self.tokens, self.rotations):
            cells.reshape(self.num_blocks, -1)[list(blocks)] = -1

    def forward(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self._broken, self.break_next = self.break_next, {}
        states = [np.zeros(0, dtype=np.uint64)]
        link_rows: dict[int, int] = {}
        for chunk in chunks:
            layout, end = chunk.layout, chunk.start + len(chunk.tokens)
            insist(len(chunk.tokens) > 0, "an empty chunk")
            insist(len(chunk.blocks) == layout.blocks(end), "blocks must cover the chunk exactly")
            slots = self._slots(chunk, end)
            rotations = rotations_of(layout, end)
            self.tokens[slots[chunk.start :]] = chunk.tokens
            self.rotations[slots[chunk.start :]] = rotations[chunk.start :]
            insist(bool((self.rotations[slots] == rotations).all()), "a position is not where it was written")
            running = self._states(layout, self.tokens[slots])[chunk.start :]
            self.computed_tokens += len(chunk.tokens)
            if layout.remote:
                rows = max(0, end - max(chunk.start, layout.prompt))
                link_rows[layout.remote.link] = link_rows.get(layout.remote.link, 0) + rows
                insist(layout.remote.link in self.attached, "a vault behind no link")
            if chunk.wanted is Wanted.ALL:
                states.append(running)
            elif chunk.wanted is Wanted.LAST:
                states.append(running[-1:])
        logits = logits_of(np.concatenate(states), self.vocabulary)
        row = 0
        for chunk in chunks:
            if chunk.wanted is Wanted.LAST and chunk.layout.remote and chunk.layout.remote.link in self._broken:
                logits[row] = float("nan")
            row += len(chunk.tokens) if chunk.wanted is Wanted.ALL else chunk.wanted is Wanted.LAST
        self.most_rows = max(self.most_rows, len(logits))
        self.most_tokens = max(self.most_tokens, sum(len(chunk.tokens) for chunk in chunks))
        self.most_link_rows = max([self.most_link_rows, *link_rows.values()])
        return logits

    def states(self, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Here the logits are the states."""
        insist(not any(chunk.layout.remote for chunk in chunks), "an embedding asks no vault")
        return self.forward(chunks)

    def attach(self, link: int, question: int, answer: int) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.attached[link] = (question, answer)

    def detach(self, link: int) -> None:
        self.attached.pop(link, None)

    def broken(self) -> dict[int, str]:
        return self._broken

    def _slots(self, chunk: Chunk, end: int) -> np.ndarray:
        """The cache slot of each position: segment after segment, each from the start of a block."""
        grid = np.asarray(chunk.blocks)[:, None] * self.block_tokens + np.arange(self.block_tokens)
        bounds = (0, chunk.layout.public, chunk.layout.prompt, end)
        parts, block = [], 0
        for start, stop in pairwise(bounds):
            length = max(0, min(stop, end) - start)
            blocks = -(-length // self.block_tokens)
            parts.append(grid[block : block + blocks].reshape(-1)[:length])
            block += blocks
        return np.concatenate(parts)

    def _states(self, layout: Layout, tokens: np.ndarray) -> np.ndarray:
        """The hash of the whole sequence up to each position, whoever holds the rest of its prompt."""
        held = min(layout.prompt, len(tokens))
        if layout.remote is None:
            private = np.zeros(0, dtype=np.uint64)
        else:
            prompt = self.vaults[(layout.remote.link, layout.remote.slot)]
            insist(layout.public == layout.prompt and list(tokens[:held]) == prompt[:held], "another prompt's vault")
            private = entries(prompt[layout.public :], layout.public)
        length = layout.prompt + len(private)
        known = layout.origin + layout.rotation
        unknown = self.relative and known == 0 and layout.public == 0
        insist(known == length or unknown, "the answer stands elsewhere")
        insist((layout.origin if self.relative else layout.rotation) == 0, "the answer is rotated otherwise")
        public = np.cumsum(entries(tokens[:held], 0))
        all_of_it = np.cumsum(np.concatenate((entries(tokens[:held], 0), private, entries(tokens[held:], length))))
        return np.concatenate((public, all_of_it[held + len(private) :]))


def rotations_of(layout: Layout, end: int) -> np.ndarray:
    """How each position is rotated: by its place in the prompt, or from the answer's origin on."""
    places = np.arange(end)
    return np.where(places < layout.prompt, places, layout.origin + places - layout.prompt)
