"""Log-probabilities for many continuations of one beginning, computed once; a branch copies. Release wipes blocks."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from cloister.compute.base import KVCache
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Wanted, lay_out
from cloister.errors import PromptTooLong
from cloister.models.decoder import Decoder
from cloister.prefix.base import BlockPool

CHUNK_TOKENS = 512  # of a beginning, in one step
ROWS = 128  # of logits at a time: each is as long as the vocabulary
SCORED_ROWS = 16  # of logits at a time where they are scored: twice their size must fit into a sealed vault

LogProbs = npt.NDArray[np.float32]


class Continuations:
    """One decoder and its cache. If others use the cache, `pool` is theirs, and `make_room(n)` frees n blocks of it."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        pool: BlockPool | None = None,
        make_room: Callable[[int], bool] = lambda count: True,
        rows: int | None = None,
    ) -> None:
        self._decoder, self._cache = decoder, cache
        self.pool = BlockPool(cache.blocks, cache.wipe) if pool is None else pool
        self._make_room = make_room
        self.vocabulary, self.max_context = decoder.vocabulary, decoder.max_context
        self.rows = rows or ROWS
        self.at_once: int | None = None  # the most tokens in one step, if fewer than usual

    @contextmanager
    def branches(self, beginning: Sequence[int], temperature: float) -> "Iterator[GrowingBranches]":
        held = GrowingBranches(self, beginning, temperature)
        try:
            yield held
        finally:
            held.release()
            self._decoder.kernels.forget()

    def limit(self, usual: int) -> int:
        return usual if self.at_once is None else max(1, min(usual, self.at_once))

    def forward(self, chunks: Sequence[Chunk], temperature: float) -> LogProbs:
        with lay_out(chunks, self._decoder.queries_per_kv_head) as batch:
            hidden = self._decoder.hidden(batch, self._cache)
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks]) - 1
        wanted = [int(end) for end, chunk in zip(ends, chunks, strict=True) if chunk.wanted is Wanted.LAST]
        if not wanted:
            return np.empty((0, self.vocabulary), dtype=np.float32)
        logits = self._decoder.logits(hidden[torch.tensor(wanted)])
        found: LogProbs = torch.log_softmax(logits.float() / temperature, dim=-1).cpu().numpy()
        return found

    def likelihoods(self, beginning: Sequence[int], rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        """ln P of each row after the beginning. Yields, before each piece, how many tokens it has at most."""
        with self.branches(beginning, 1.0) as begun:
            return (yield from begun.likelihoods(rows))

    def following(self, chunks: Sequence[Chunk], tokens: Sequence[int]) -> list[float]:
        """ln P of the token after each of the chunks' tokens."""
        with lay_out(chunks, self._decoder.queries_per_kv_head) as batch:
            hidden = self._decoder.hidden(batch, self._cache)
        found: list[float] = []
        for start in range(0, len(tokens), SCORED_ROWS):
            logits = self._decoder.logits(hidden[start : start + SCORED_ROWS]).float()
            wanted = torch.tensor(tokens[start : start + SCORED_ROWS], device=logits.device)[:, None]
            found += torch.log_softmax(logits, dim=-1).gather(1, wanted)[:, 0].tolist()
        return found

    def allocate(self, count: int) -> list[int]:
        blocks = self.pool.allocate(count) if self._make_room(count) else None
        if blocks is None:
            raise PromptTooLong(
                "The keys and values of the candidates do not fit the memory reserved for them.",
                hint="Sample fewer candidates (λ_max), or mark shorter secrets.",
            )
        return blocks

    def copy(self, copies: Sequence[tuple[int, int]]) -> None:
        self._cache.copy([source for source, _ in copies], [target for _, target in copies])


class GrowingBranches:
    def __init__(self, held: Continuations, beginning: Sequence[int], temperature: float) -> None:
        self._held = held
        self._beginning, self._temperature = list(beginning), temperature
        # The beginning is a separate segment, so that continuations start in new blocks.
        self._layout = Layout(prompt=2**30, public=len(beginning))
        self._shared: list[int] = []
        self._own: list[list[int]] = [[]]
        self._length = 0
        self._remaining, self._piece = 0, 0  # tokens left to compute, and the most in one step

    @property
    def left(self) -> int:
        return min(self._remaining, self._piece)

    def first(self) -> Iterator[LogProbs]:
        self._remaining, self._piece = len(self._beginning), CHUNK_TOKENS
        return self._begun()

    def _begun(self) -> Iterator[LogProbs]:
        self._shared = self._held.allocate(self._layout.blocks(len(self._beginning)))
        while self._remaining:
            start = len(self._beginning) - self._remaining
            tokens = self._beginning[start : start + self._held.limit(self._piece)]
            self._remaining -= len(tokens)
            chunk = Chunk(tokens, start, self._shared, self._layout, Wanted.NONE if self._remaining else Wanted.LAST)
            yield self._held.forward([chunk], self._temperature)

    def grow(self, parents: Sequence[int], tokens: Sequence[Sequence[int]]) -> Iterator[LogProbs]:
        added = len(tokens[0])
        start, self._length = self._length, self._length + added
        self._remaining, self._piece = added * len(tokens), added * max(1, self._held.rows // added)
        self._own = self._inherit(parents, start)
        return self._computed(tokens, start)

    def likelihoods(self, rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        pieces = self.first()
        while self.left:
            yield self.left
            begun = next(pieces)
        found = [float(begun[0, row[0]]) for row in rows]
        waiting = deque(sorted(range(len(rows)), key=lambda at: len(rows[at])))
        while waiting:
            together = [waiting.popleft()]
            while waiting and (len(together) + 1) * len(rows[waiting[0]]) <= CHUNK_TOKENS:
                together.append(waiting.popleft())
            scored = yield from self._scored([rows[at] for at in together])
            for at, likely in zip(together, scored, strict=True):
                found[at] += likely
        return found

    def _scored(self, rows: Sequence[Sequence[int]]) -> Generator[int, None, list[float]]:
        """ln P of each row's tokens after its first. The rows are the branches until the next ones."""
        for blocks in self._own:
            self._held.pool.release(blocks)
        self._own = []
        for row in rows:
            self._own.append(self._held.allocate(-(-(len(row) - 1) // BLOCK_TOKENS)))
        found = [0.0] * len(rows)
        waiting = deque((at, 0) for at, row in enumerate(rows) if len(row) > 1)
        while waiting:
            yield min(CHUNK_TOKENS, sum(len(rows[at]) - 1 - start for at, start in waiting))
            room, chunks, after, places = self._held.limit(CHUNK_TOKENS), list[Chunk](), list[int](), list[int]()
            while waiting and room:
                at, start = waiting.popleft()
                end = min(len(rows[at]) - 1, start + room)
                blocks = [*self._shared, *self._own[at]]
                chunks.append(
                    Chunk(rows[at][start:end], len(self._beginning) + start, blocks, self._layout, Wanted.ALL)
                )
                after += rows[at][start + 1 : end + 1]
                places += [at] * (end - start)
                room -= end - start
                if end < len(rows[at]) - 1:
                    waiting.appendleft((at, end))
            for at, likely in zip(places, self._held.following(chunks, after), strict=True):
                found[at] += likely
        return found

    def release(self) -> None:
        for blocks in self._own:
            self._held.pool.release(blocks)
        self._held.pool.release(self._shared)
        self._own, self._shared = [], []

    def _inherit(self, parents: Sequence[int], length: int) -> list[list[int]]:
        """A parent's first child takes over its last block; the others copy it."""
        old = self._own
        for index in set(range(len(old))) - set(parents):
            self._held.pool.release(old[index])
            old[index] = []
        whole, held = length // BLOCK_TOKENS, -(-length // BLOCK_TOKENS)
        added = -(-self._length // BLOCK_TOKENS) - held
        copied = len(parents) - len(set(parents)) if held > whole else 0
        fresh = iter(self._held.allocate(copied + added * len(parents)))
        inherited: set[int] = set()
        grown: list[list[int]] = []
        copies: list[tuple[int, int]] = []
        for parent in parents:
            blocks = list(old[parent])
            if parent in inherited:
                self._held.pool.retain(blocks[:whole])
                if held > whole:
                    copies.append((blocks[whole], next(fresh)))
                    blocks[whole] = copies[-1][1]
            inherited.add(parent)
            grown.append(blocks + [next(fresh) for _ in range(added)])
        self._held.copy(copies)
        return grown

    def _computed(self, tokens: Sequence[Sequence[int]], start: int) -> Iterator[LogProbs]:
        position, added, first = len(self._beginning) + start, len(tokens[0]), 0
        while first < len(tokens):
            rows = max(1, self._held.limit(self._piece) // added)
            pairs = list(zip(tokens[first : first + rows], self._own[first : first + rows], strict=True))
            first += len(pairs)
            self._remaining -= added * len(pairs)
            yield self._held.forward(
                [Chunk(new, position, [*self._shared, *blocks], self._layout, Wanted.LAST) for new, blocks in pairs],
                self._temperature,
            )
