"""A vault's memory of its past prompts: the blocks that hold their keys and values. At `partitioned` an answer's keys
live at the service, and the next turn's prefill computes them. To the engine of `isolated` it is the prefix cache."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloister.compute.layout import BLOCK_TOKENS, Layout
from cloister.engine.blocks import BlockPool
from cloister.prefix.base import Found, Pool, PrefixCache, PrefixKey

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recalled:
    """`blocks` hold the first `computed` positions of a prompt. The caller releases them like its own."""

    blocks: list[int]
    computed: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Past:
    tokens: Tokens
    public: int
    blocks: tuple[int, ...]


class SessionMemory(PrefixCache):
    """The least recently used first. The memory holds a reference to each block."""

    def __init__(self) -> None:
        self.pool: Pool = BlockPool(0)
        self._past: deque[_Past] = deque()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        self.pool = pool

    def recall(self, tokens: Sequence[int], public: int) -> Recalled:
        """The whole blocks of the longest remembered beginning; the last token is always computed, for its logits."""
        wanted = np.asarray(tokens[:-1], dtype=np.int64)
        longest, best = 0, None
        for past in self._past:
            if (reusable := _reusable(past, wanted, public)) > longest:
                longest, best = reusable, past
        if best is None:
            return Recalled([], 0)
        self._past.remove(best)
        self._past.append(best)
        blocks = list(best.blocks[: Layout(prompt=len(tokens), public=public).blocks(longest)])
        self.pool.retain(blocks)
        return Recalled(blocks, longest)

    def keep(self, tokens: Sequence[int], public: int, blocks: Sequence[int]) -> None:
        """Older prompts that it begins with are let go."""
        length = whole(len(tokens), public)
        if not length:
            return
        new = np.asarray(tokens[:length], dtype=np.int64)
        held = tuple(blocks[: Layout(prompt=len(tokens), public=public).blocks(length)])
        self.pool.retain(held)
        for past in list(self._past):
            if past.public == public and common(new, past.tokens) == len(past.tokens):
                self._let_go(past)
        self._past.append(_Past(new, public, held))

    def make_room(self, count: int) -> bool:
        """Whether `count` blocks are free, after letting go of what was not used for longest."""
        while self.pool.free < count and self._past:
            self._let_go(self._past[0])
        return self.pool.free >= count

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return Found(tuple(self.recall([*_pages(key, most), -1], public=0).blocks))

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        self.keep(_pages(key, len(blocks)), 0, blocks)

    def evict(self, count: int) -> None:
        self.make_room(self.pool.free + count)

    def _let_go(self, past: _Past) -> None:
        self._past.remove(past)
        self.pool.release(past.blocks)


def _pages(key: PrefixKey, pages: int) -> list[int]:
    """As a prompt of one segment (Paging.pack tells segments apart)."""
    tokens: list[int] = np.frombuffer(key.tokens, dtype="<i4")[: pages * BLOCK_TOKENS].tolist()
    return tokens


def _reusable(past: _Past, wanted: Tokens, public: int) -> int:
    """All whole blocks of the common beginning if both are split at the same position; otherwise those of both first
    segments: a later segment's keys are rounded by the split (compute.layout.Layout)."""
    equal = common(past.tokens, wanted)
    if past.public == public:
        return whole(equal, public)
    return whole(min(equal, past.public or len(past.tokens), public or equal), 0)


def whole(length: int, public: int) -> int:
    """How many of the first positions lie in blocks that are never written again: full ones, and all public ones."""
    if length < public:
        return length // BLOCK_TOKENS * BLOCK_TOKENS
    return public + (length - public) // BLOCK_TOKENS * BLOCK_TOKENS


def common(first: npt.ArrayLike, second: npt.ArrayLike) -> int:
    one, other = np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64)
    shorter = min(len(one), len(other))
    differs = one[:shorter] != other[:shorter]
    return int(differs.argmax()) if differs.any() else shorter
