"""Which pages go first when blocks run short: the last pages of the least recently used nodes (SafeKV §VI-B2, §VI-B3).
The paper orders all nodes by the epoch of their last use. Then a tenant that loses a prompt learns that another tenant
had a hit. Here a tenant's hits order its own nodes only. Between tenants, the one with more than an equal share goes
first, then the one whose last request is older. Among equals, public nodes go first, then compressed chains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count

from cloister.prefix.node import Node, Tenant
from cloister.prefix.tree import Tree


class EvictionOrder:
    """The edges of the tree in one queue per tenant. Entries are checked when they are popped."""

    def __init__(self, tree: Tree, in_use: Callable[[Node], bool]) -> None:
        self._public = tree.public.tenant
        self._in_use = in_use
        self._serial = count()

    def push(self, node: Node) -> None:
        if node.serial is None and node.resident and node.in_tree and node.is_edge:
            node.namespace.tenant.queue.push(node, next(self._serial))

    def victims(self, tenants: Iterable[Tenant], share: int) -> Iterator[Node]:
        private = sorted((tenant for tenant in tenants if tenant.queue), key=lambda tenant: tenant.last_request)
        used: list[Node] = []
        try:
            while private or self._public.queue:
                tenant = self._next(private, share)
                node = self._oldest(tenant, used)
                if node is not None:
                    yield node
                elif tenant is not self._public:
                    private.remove(tenant)
        finally:
            for node in used:
                self.push(node)

    def _next(self, private: list[Tenant], share: int) -> Tenant:
        largest = max(private, key=lambda tenant: tenant.pages, default=None)
        if largest is not None and largest.pages > share:
            return largest
        if not private or (self._public.queue and self._public.queue.first_epoch <= private[0].last_request):
            return self._public
        return private[0]

    def _oldest(self, tenant: Tenant, used: list[Node]) -> Node | None:
        while tenant.queue:
            epoch, node = tenant.queue.pop()
            if not node.resident or not node.is_edge:
                continue
            if node.epoch > epoch:
                self.push(node)
            elif self._in_use(node):
                used.append(node)
            else:
                return node
        return None
