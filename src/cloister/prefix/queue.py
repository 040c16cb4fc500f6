"""One tenant's nodes that may be evicted, the least recently used first: a `heapq` from which nodes can be removed."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloister.prefix.node import Node

_SLACK = 32


class EvictionQueue:
    """A removed node's entry stays in the heap until it is the first, or until such entries are the majority."""

    __slots__ = ("_heap", "_nodes")

    def __init__(self) -> None:
        # epoch of the last use, whether the node is a single turn, serial number
        self._heap: list[tuple[int, bool, int]] = []
        self._nodes: dict[int, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def first_epoch(self) -> int:
        """The epoch under which the first node was pushed."""
        return self._heap[0][0]

    def push(self, node: Node, serial: int) -> None:
        """Among nodes of one epoch, compressed ones come first, then the smallest serial number."""
        node.serial = serial
        self._nodes[serial] = node
        heappush(self._heap, (node.epoch, not node.compressed, serial))

    def pop(self) -> tuple[int, Node]:
        epoch, node = self._heap[0][0], self._nodes[self._heap[0][2]]
        self.remove(node)
        return epoch, node

    def remove(self, node: Node) -> None:
        """Do nothing if the node does not wait here."""
        if node.serial is None:
            return
        del self._nodes[node.serial]
        node.serial = None
        if len(self._heap) > 2 * len(self._nodes) + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2] in self._nodes]
            heapify(self._heap)
        while self._heap and self._heap[0][2] not in self._nodes:
            heappop(self._heap)
