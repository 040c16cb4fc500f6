"""What goes from the pool's storage to a tier below it, and where it is then. Knows no references and no order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

from cloister.prefix.base import Storage
from cloister.prefix.node import Node
from cloister.prefix.tier import State, Tier
from cloister.prefix.tree import Tree

LOST = -(1 << 62)
"""In a place's place: what was there is nowhere any more."""


class Offload:
    """Without a tier, nothing goes anywhere. A page's place there is `~number`."""

    def __init__(self, tree: Tree, tier: Tier | None, storage: Storage | None) -> None:
        self._tree, self._tier, self._storage = tree, tier, storage
        self._page = tree.page

    def store(self, node: Node, start: int) -> list[int]:
        """Copy resident pages from `start` on to the tier; where they are then, as far as that went."""
        stored: list[int] = []
        if self._tier is not None:
            assert self._storage is not None
            blocks = node.blocks
            room = self._tier.room(node.resident - start)
            for page, bound in self._bounds(node, start, start + room):
                number = self._tier.store(node.owner, bound, self._storage.read(blocks[page]))
                if number is None:
                    break
                stored.append(~number)
        return stored

    def fetch(self, node: Node, pages: int) -> Iterator[tuple[int, State]]:
        """Ask the tier for those of the first pages that are not in the pool: each, and where it is."""
        assert self._tier is not None
        blocks = node.blocks
        for page, bound in self._bounds(node, node.resident, pages):
            yield page, self._tier.fetch(~blocks[page], bound)

    def take(self, place: int, block: int) -> bool:
        """Put what is HERE into a block; whether it still was."""
        assert self._tier is not None and self._storage is not None
        if (data := self._tier.take(~place)) is None:
            return False
        self._storage.write(block, data)
        return True

    def discard(self, places: Iterable[int]) -> None:
        """Nobody needs what is there any more."""
        for place in places:
            if place != LOST:
                assert self._tier is not None and place < 0
                self._tier.discard(~place)

    def _bounds(self, node: Node, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """For pages of a run: what binds each of them to all tokens up to its end."""
        if start < end:
            tokens = node.tokens
            digest = sha256(self._tree.tokens_before(node) + tokens[: start * self._page])
            for page in range(start, end):
                digest.update(tokens[page * self._page : (page + 1) * self._page])
                yield page, digest.digest()
