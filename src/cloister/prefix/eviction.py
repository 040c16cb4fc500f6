"""What goes first when blocks run short: the last pages of what was not used for longest (SafeKV §VI-B2, §VI-B3).

The paper orders all nodes by the epoch of their last use. Then a tenant whose prompts vanish learns that another's were
found. So here a tenant's hits order its own nodes alone; between tenants it counts who holds more than an equal share,
then whose last request is older, whatever it found. Public nodes go by their last use, which is anybody's. Among equals
public ones go first, then the ends of compressed chains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

from cloister.prefix.node import Account, Node

_SERIAL_BITS = 40


def _epoch(node: Node) -> int:
    """In which a node was put where it waits; who was used since waits anew."""
    return node.rank >> _SERIAL_BITS + 1


class EvictionOrder:
    """The edges of the tree (Node.is_edge), account by account, in heaps whose entries are checked when popped."""

    def __init__(self, public: Account, in_use: Callable[[Node], bool]) -> None:
        self._public = public
        self._in_use = in_use
        self._serial = count()

    def push(self, node: Node) -> None:
        """The node may be an edge now."""
        account = node.owner.account
        if node.queued is not account and node.resident and node.parent is not None and node.is_edge:
            node.queued = account
            node.rank = (2 * node.epoch + (not node.is_compressed)) << _SERIAL_BITS | next(self._serial)
            heappush(account.heap, node)

    def victims(self, accounts: Iterable[Account], share: int) -> Iterator[Node]:
        """Edges to take pages from, one after the other. Whoever takes some pushes what is an edge then."""
        private = sorted((account for account in accounts if account.heap), key=lambda account: account.seen)
        used: list[Node] = []
        try:
            while private or self._public.heap:
                account = self._next(private, share)
                node = self._oldest(account, used)
                if node is not None:
                    yield node
                elif account is not self._public:
                    private.remove(account)
        finally:
            for node in used:
                self.push(node)

    def _next(self, private: list[Account], share: int) -> Account:
        greediest = max(private, key=lambda account: account.pages, default=None)
        if greediest is not None and greediest.pages > share:
            return greediest
        if not private or (self._public.heap and _epoch(self._public.heap[0]) <= private[0].seen):
            return self._public
        return private[0]

    def _oldest(self, account: Account, used: list[Node]) -> Node | None:
        while account.heap:
            node = heappop(account.heap)
            if node.queued is not account:
                continue
            node.queued = None
            if node.parent is None or node.owner.account is not account or not node.resident or not node.is_edge:
                continue
            if node.epoch > _epoch(node):
                self.push(node)
            elif self._in_use(node):
                used.append(node)
            else:
                return node
        return None
