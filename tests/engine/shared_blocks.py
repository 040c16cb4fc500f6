"""The smallest prefix cache that reuses anything: a dictionary, visible to its own tenant only."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.prefix.base import BlockPool, Found, PrefixCache, PrefixKey


class SharedBlocks(PrefixCache):
    """One entry per (tenant, whole prefix); the oldest goes first."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, bytes], int] = {}
        self.lent = 0
        self.asked_by: list[str] = []

    def attach(self, pool: BlockPool, page_tokens: int) -> None:
        super().attach(pool, page_tokens)
        self._size = page_tokens * 4

    def lookup(self, key: PrefixKey, most: int) -> Found:
        self.asked_by.append(key.tenant)
        blocks: list[int] = []
        for pages in range(1, most + 1):
            block = self.kept.get((key.tenant, key.tokens[: pages * self._size]))
            if block is None:
                break
            blocks.append(block)
        self.pool.retain(blocks)
        self.lent += len(blocks)
        return Found(tuple(blocks))

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        assert len(key.tokens) >= len(blocks) * self._size
        for i, block in enumerate(blocks):
            entry = (key.tenant, key.tokens[: (i + 1) * self._size])
            if entry not in self.kept:
                self.pool.retain([block])
                self.kept[entry] = block

    def evict(self, count: int) -> None:
        goal = self.pool.free + count
        for key in list(self.kept):
            if self.pool.free >= goal:
                return
            if self.pool.references(self.kept[key]) == 1:
                self.pool.release([self.kept.pop(key)])
