"""Brings pages back from the tiers below the pool when a request finds them (SafeKV §VI-A)."""

from collections.abc import Callable

from cloister.prefix.base import Counts, Pool
from cloister.prefix.node import Node
from cloister.prefix.tier import State
from cloister.prefix.tree import Path
from cloister.prefix.tree_blocks import LOST, Offload, TreeBlocks


class Recall:
    def __init__(
        self, pool: Pool, blocks: TreeBlocks, offload: Offload, counts: Counts, make_room: Callable[[int], None]
    ) -> None:
        self._pool, self._blocks, self._offload, self._counts = pool, blocks, offload, counts
        self._make_room = make_room

    def recalled(self, path: Path, search: Callable[[], Path]) -> Path:
        ready, path = self.fetch(path), search()  # pages that were lost are cut off
        if not ready:
            return path
        found = [block for node, pages in path for block in node.blocks[:pages] if block >= 0]
        self._pool.retain(found)  # so that room is not made by evicting them
        if ready > self._pool.free:
            self._make_room(ready - self._pool.free)
            path = search()  # nodes may have been joined
        self._pool.release(found)
        for node, pages in path:
            ready -= self._bring(node, min(pages - node.resident, ready))
            if node.resident < pages:
                break
        return search()

    def fetch(self, path: Path) -> int:
        """How many pages can be taken now, from the first on. A lost page loses the pages after it too."""
        ready, all_ready = 0, True
        for node, pages in path:
            for page, state in self._offload.fetch(node, pages):
                match state:
                    case State.HERE:
                        ready += all_ready
                    case State.COMING:
                        all_ready = False
                    case State.LOST:
                        node.blocks[page] = LOST
                        self._blocks.cut(node, page)
                        return ready
        return ready

    def _bring(self, node: Node, most: int) -> int:
        blocks: list[int] = []
        for location in node.blocks[node.resident : node.resident + most]:
            if (taken := self._pool.allocate(1)) is None:
                break
            if not self._offload.take(location, taken[0]):
                self._pool.release(taken)
                break
            blocks += taken
        self._blocks.take(node, blocks)
        self._counts.recalls += len(blocks)
        return len(blocks)
