"""What goes first when blocks run short: the last pages of what was not used for longest (SafeKV §VI-B2, §VI-B3).

The paper orders all nodes by the epoch of their last use. Then a tenant whose prompts vanish learns that another's were
found. So here a tenant's hits order its own nodes alone; between tenants it counts who holds more than an equal share,
then whose last request is older, whatever it found. Public nodes go by their last use, which is anybody's. Among equals
public ones go first, then the ends of compressed chains, then what waits for longest (never a run's number, which says
what others gave up).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from cloister.prefix.heap import NOWHERE
from cloister.prefix.node import Node
from cloister.prefix.owners import Account
from cloister.prefix.runs import NONE
from cloister.prefix.tree import Tree

_SERIAL_BITS = 24
_SERIALS = (1 << _SERIAL_BITS) - 1
"""After so many the order among equals begins anew."""


def _epoch(rank: int) -> int:
    """In which a node was put where it waits; who was used since waits anew."""
    return rank >> _SERIAL_BITS + 1


class EvictionOrder:
    """The edges of the tree (Node.is_edge), account by account, in heaps whose entries are checked when popped."""

    def __init__(self, tree: Tree, in_use: Callable[[Node], bool]) -> None:
        self._runs = tree.runs
        self._public = tree.public.account
        self._in_use = in_use
        self._serial = count()

    def push(self, node: Node) -> None:
        """The node may be an edge now."""
        runs, run = self._runs, node.run
        if runs.place[run] == NOWHERE and runs.resident[run] and runs.parent[run] != NONE and runs.is_edge(run):
            last = (2 * runs.epoch[run] + (run not in runs.links)) << _SERIAL_BITS
            heap = runs.owner_at(runs.owner[run]).account.heap
            heap.push(last | next(self._serial) & _SERIALS, run, runs.place)

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
        if not private or (self._public.heap and _epoch(self._public.heap.least) <= private[0].seen):
            return self._public
        return private[0]

    def _oldest(self, account: Account, used: list[Node]) -> Node | None:
        while account.heap:
            rank, run = account.heap.pop(self._runs.place)
            node = Node(self._runs, run)
            if not node.resident or not node.is_edge:
                continue
            if node.epoch > _epoch(rank):
                self.push(node)
            elif self._in_use(node):
                used.append(node)
            else:
                return node
        return None
