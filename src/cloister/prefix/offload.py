"""Moves pages from the pool's storage to the tier below it. Knows no references and no order of eviction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from cloister.prefix.base import Storage
from cloister.prefix.node import Node
from cloister.prefix.tier import State, Tier
from cloister.prefix.tree import Tree

LOST = -(1 << 62)  # in Node.blocks: neither the pool nor a lower tier has this page


class Offload:
    """A page in the tier is `~number` in Node.blocks. Without a tier, no page is stored."""

    def __init__(self, tree: Tree, tier: Tier | None, storage: Storage | None) -> None:
        self._tree, self._tier, self._storage = tree, tier, storage

    def store(self, node: Node, start: int) -> list[int]:
        """Copy pages from `start` on to the tier. Returns their numbers; fewer if the tier is full."""
        stored: list[int] = []
        if self._tier is not None:
            assert self._storage is not None
            room = self._tier.room(node.resident - start)
            for page, bound in self._bounds(node, start, start + room):
                number = self._tier.store(node.namespace, bound, self._storage.read(node.blocks[page]))
                if number is None:
                    break
                stored.append(~number)
        return stored

    def fetch(self, node: Node, pages: int) -> Iterator[tuple[int, State]]:
        assert self._tier is not None
        for page, bound in self._bounds(node, node.resident, pages):
            yield page, self._tier.fetch(~node.blocks[page], bound)

    def take(self, location: int, block: int) -> bool:
        """Write a page that is HERE into a block. False if the tier no longer has it."""
        assert self._tier is not None and self._storage is not None
        if (data := self._tier.take(~location)) is None:
            return False
        self._storage.write(block, data)
        return True

    def discard(self, locations: Iterable[int]) -> None:
        for location in locations:
            if location != LOST:
                assert self._tier is not None and location < 0
                self._tier.discard(~location)

    def _bounds(self, node: Node, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Each page with a digest of all tokens up to its end."""
        if start < end:
            size = self._tree.page
            digest = sha256(self._tree.tokens_before(node) + node.tokens[: start * size])
            for page in range(start, end):
                digest.update(node.tokens[page * size : (page + 1) * size])
                yield page, digest.digest()
