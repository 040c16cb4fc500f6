"""The smallest prefix cache that reuses anything: a dictionary, visible to its own tenant only."""

from __future__ import annotations

from collections.abc import Sequence

from cloister.engine.blocks import BlockPool, PrefixCache


class SharedBlocks(PrefixCache):
    """One entry per (tenant, whole prefix); the oldest goes first."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, tuple[int, ...]], int] = {}
        self.lent = 0
        self.asked_by: list[str] = []

    def attach(self, pool: BlockPool, block_tokens: int) -> None:
        self._pool, self._size = pool, block_tokens

    def match(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        self.asked_by.append(tenant)
        blocks: list[int] = []
        for end in range(self._size, len(tokens) + 1, self._size):
            block = self.kept.get((tenant, tuple(tokens[:end])))
            if block is None:
                break
            blocks.append(block)
        self._pool.retain(blocks)
        self.lent += len(blocks)
        return blocks

    def offer(self, tenant: str, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        assert len(tokens) == len(blocks) * self._size
        for i, block in enumerate(blocks):
            key = (tenant, tuple(tokens[: (i + 1) * self._size]))
            if key not in self.kept:
                self._pool.retain([block])
                self.kept[key] = block

    def evict(self, count: int) -> None:
        goal = self._pool.free + count
        for key in list(self.kept):
            if self._pool.free >= goal:
                return
            if self._pool.references(self.kept[key]) == 1:
                self._pool.release([self.kept.pop(key)])
