"""Next-token log-probabilities for many continuations of one beginning, whose keys and values are computed once.

What sampling of substitutes (`obfuscation/language_model.py`) asks of a model, on the decoder and kernels that serve.
Each continuation has blocks of its own behind the beginning's; one that grows in several ways is copied, not computed
again. Knows tokens and blocks, nothing of what is sampled. All blocks are wiped when the beginning is let go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from cloister.compute.base import KVCache
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted, lay_out
from cloister.engine.blocks import BlockPool
from cloister.errors import PromptTooLong
from cloister.models.decoder import Decoder

CHUNK_TOKENS = 512
"""Tokens of a beginning computed in one step."""
ROWS = 128
"""Rows of logits held at a time: each is as long as the vocabulary."""

LogProbs = npt.NDArray[np.float32]


class Continuations:
    """One decoder and a cache that nobody else uses."""

    def __init__(self, decoder: Decoder, cache: KVCache) -> None:
        self._decoder, self._cache = decoder, cache
        self._pool = BlockPool(cache.blocks, cache.wipe)
        self.vocabulary, self.max_context = decoder.vocabulary, decoder.max_context

    @contextmanager
    def branches(self, beginning: Sequence[int], temperature: float) -> Iterator[GrowingBranches]:
        held = GrowingBranches(self._decoder, self._cache, self._pool, beginning, temperature)
        try:
            held.begin()
            yield held
        finally:
            held.release()
            self._decoder.kernels.forget()


class GrowingBranches:
    """The continuations of one beginning."""

    def __init__(
        self, decoder: Decoder, cache: KVCache, pool: BlockPool, beginning: Sequence[int], temperature: float
    ) -> None:
        self._decoder, self._cache, self._pool = decoder, cache, pool
        self._beginning, self._temperature = list(beginning), temperature
        # The beginning is a segment of its own, so that continuations start in blocks of their own.
        self._layout = Layout(prompt=2**30, public=len(beginning))
        self._shared: list[int] = []
        self._own: list[list[int]] = [[]]
        self._length = 0

    def begin(self) -> None:
        self._shared = self._allocate(self._layout.blocks(len(self._beginning)))
        for start in range(0, len(self._beginning), CHUNK_TOKENS):
            tokens = self._beginning[start : start + CHUNK_TOKENS]
            last = start + len(tokens) == len(self._beginning)
            chunk = Chunk(tokens, start, self._shared, self._layout, Wanted.LAST if last else Wanted.NONE)
            found = self._forward([chunk])
        self._first = found

    def first(self) -> LogProbs:
        return self._first

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        added = len(tokens[0])
        start, self._length = self._length, self._length + added
        self._own = self._inherit(parents, start)
        return self._computed(tokens, start, max(1, ROWS // added))

    def release(self) -> None:
        for blocks in self._own:
            self._pool.release(blocks)
        self._pool.release(self._shared)
        self._own, self._shared = [], []

    def _inherit(self, parents: Sequence[int], length: int) -> list[list[int]]:
        """Blocks for the new continuations: a parent's first child takes its last block over, the others copy it."""
        old = self._own
        for index in set(range(len(old))) - set(parents):
            self._pool.release(old[index])
            old[index] = []
        whole, held = length // BLOCK_TOKENS, -(-length // BLOCK_TOKENS)
        added = -(-self._length // BLOCK_TOKENS) - held
        copied = len(parents) - len(set(parents)) if held > whole else 0
        fresh = iter(self._allocate(copied + added * len(parents)))
        inherited: set[int] = set()
        grown: list[list[int]] = []
        copies: list[tuple[int, int]] = []
        for parent in parents:
            blocks = list(old[parent])
            if parent in inherited:
                self._pool.retain(blocks[:whole])
                if held > whole:
                    copies.append((blocks[whole], next(fresh)))
                    blocks[whole] = copies[-1][1]
            inherited.add(parent)
            grown.append(blocks + [next(fresh) for _ in range(added)])
        self._cache.copy([source for source, _ in copies], [target for _, target in copies])
        return grown

    def _computed(self, tokens: Sequence[Sequence[int]], start: int, rows: int) -> Iterator[LogProbs]:
        position = len(self._beginning) + start
        for first in range(0, len(tokens), rows):
            pairs = zip(tokens[first : first + rows], self._own[first : first + rows], strict=True)
            yield self._forward(
                [Chunk(new, position, [*self._shared, *blocks], self._layout, Wanted.LAST) for new, blocks in pairs]
            )

    def _forward(self, chunks: Sequence[Chunk]) -> LogProbs:
        """Log-probabilities after the last token of each chunk that wants them."""
        hidden = self._decoder.hidden(lay_out(chunks, self._decoder.queries_per_kv_head), self._cache)
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks]) - 1
        wanted = [int(end) for end, chunk in zip(ends, chunks, strict=True) if chunk.wanted is Wanted.LAST]
        if not wanted:
            return np.empty((0, self.vocabulary), dtype=np.float32)
        logits = self._decoder.logits(hidden[torch.tensor(wanted)])
        found: LogProbs = torch.log_softmax(logits.float() / self._temperature, dim=-1).cpu().numpy()
        return found

    @property
    def vocabulary(self) -> int:
        return self._decoder.vocabulary

    def _allocate(self, count: int) -> list[int]:
        blocks = self._pool.allocate(count)
        if blocks is None:
            raise PromptTooLong(
                "The keys and values of so many candidates do not fit the memory set aside for them.",
                hint="Sample fewer candidates (λ_max), or mark shorter secrets.",
            )
        return blocks
