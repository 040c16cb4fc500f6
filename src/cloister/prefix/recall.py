"""What comes back from the tiers below the pool, when it is found (SafeKV §VI-A)."""

from __future__ import annotations

from collections.abc import Callable

from cloister.prefix.base import Counts, Pool
from cloister.prefix.node import Node
from cloister.prefix.offload import LOST, Offload
from cloister.prefix.tier import State
from cloister.prefix.tree import Path
from cloister.prefix.tree_blocks import TreeBlocks


class Recall:
    """`make_room` evicts so many pages, if it can."""

    def __init__(
        self, pool: Pool, holding: TreeBlocks, offload: Offload, counts: Counts, make_room: Callable[[int], None]
    ) -> None:
        self._pool, self._holding, self._offload, self._counts = pool, holding, offload, counts
        self._make_room = make_room

    def recalled(self, path: Path, search: Callable[[], Path]) -> Path:
        """Put into the pool what lower tiers have ready of a path, and have the rest brought."""
        here, path = self.fetch(path), search()  # what was lost is cut off
        if not here:
            return path
        found = [block for node, pages in path for block in node.places(0, pages) if block >= 0]
        self._pool.retain(found)  # so that what makes room is not what was found
        if here > self._pool.free:
            self._make_room(here - self._pool.free)
            path = search()  # nodes may have been joined
        self._pool.release(found)
        for node, pages in path:
            here -= self._bring(node, min(pages - node.resident, here))
            if node.resident < pages:
                break
        return search()

    def fetch(self, path: Path) -> int:
        """Ask lower tiers for all pages of a path that are not in the pool; how many of the next can be had now. What
        follows a page that was lost is lost, too."""
        here, all_here = 0, True
        for node, pages in path:
            for page, state in self._offload.fetch(node, pages):
                match state:
                    case State.HERE:
                        here += all_here
                    case State.COMING:
                        all_here = False
                    case State.LOST:
                        node.set_places(page, [LOST])
                        self._holding.cut(node, page)
                        return here
        return here

    def _bring(self, node: Node, most: int) -> int:
        """Bring back so many pages, the first that are not in the pool; how many could be had now."""
        blocks: list[int] = []
        for place in node.places(node.resident, node.resident + most):
            if (taken := self._pool.allocate(1)) is None:
                break
            if not self._offload.take(place, taken[0]):
                self._pool.release(taken)
                break
            blocks += taken
        self._holding.take(node, blocks)
        self._counts.recalls += len(blocks)
        return len(blocks)
