"""The tree over the block pool: which blocks it holds, which it gives up for room. The pool
wipes a block when its last reference goes, so never while a sequence reads it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from cloister.prefix.base import Counts, Pool
from cloister.prefix.node import Namespace, Node, Tenant
from cloister.prefix.tree import Tree


class EvictionOrder:
    """Which pages go first: the last pages of the least recently used nodes (SafeKV §VI-B2, §VI-B3). The paper orders
    all nodes by the epoch of their last use. Then a tenant that loses a prompt learns that another tenant had a hit.
    Here a tenant's hits order its own nodes only. Between tenants, the one with more than an equal share goes first,
    then the one whose last request is older. Among equals, public nodes go first, then compressed chains."""

    def __init__(self, tree: Tree, in_use: Callable[[Node], bool]) -> None:
        self._public = tree.public.tenant
        self._in_use = in_use
        self._serial = count()

    def push(self, node: Node) -> None:
        if node.serial is None and node.in_tree and not node.children:
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
            if node.children:
                continue
            if node.epoch > epoch:
                self.push(node)
            elif self._in_use(node):
                used.append(node)
            else:
                return node
        return None


class TreeBlocks:
    """Every change of the tree that takes or gives up blocks, or makes an edge, goes through here."""

    def __init__(self, pool: Pool, tree: Tree, counts: Counts) -> None:
        self._pool, self._tree, self._counts = pool, tree, counts
        self.order = EvictionOrder(tree, lambda node: self._in_use(node.blocks[-1]))
        self._held = bytearray(pool.total)  # whether each block is in a node

    @property
    def pages(self) -> int:
        return sum(self._held)

    def first_kept(self, blocks: Sequence[int], start: int) -> int:
        """The first block from `start` on that the tree holds already: a block is added only once."""
        return next((at for at in range(start, len(blocks)) if self._held[blocks[at]]), len(blocks))

    def add(
        self, parent: Node, namespace: Namespace, creator: Namespace, tokens: bytes, blocks: list[int], epoch: int
    ) -> Node:
        self._pool.retain(blocks)
        for block in blocks:
            self._held[block] = True
        namespace.tenant.pages += len(blocks)
        continues = namespace is parent.namespace is not self._tree.public and parent.rights == (creator,)
        if continues and not parent.children:
            self._tree.extend(parent, tokens, blocks)
            node = parent
        else:
            node = self._tree.add(parent, namespace, creator, tokens, blocks)
        node.epoch = epoch
        self.order.push(node)
        return node

    def split(self, node: Node, pages: int) -> Node:
        if pages == node.pages:
            return node
        head = self._tree.split(node, pages)
        self.order.push(node)
        return head

    def evict(self, count: int, tenants: list[Tenant]) -> None:
        goal = self._pool.free + count
        share = self._pool.total // (len(tenants) + 1)
        for node in self.order.victims(tenants, share):
            if self._pool.free < goal:
                self._shorten(node, goal - self._pool.free)
            if self._pool.free >= goal:
                self.order.push(node)
                return

    def remove(self, top: Node) -> None:
        """The node's parent may be an edge afterwards, or part of a chain."""
        parent = top.parent
        assert parent is not None
        for node in reversed(list(self._tree.nodes(top))):
            self._give_back(node, 0)
            self._tree.remove(node)
        if parent is not self._tree.root:
            self.order.push(self._tree.compress(parent))

    def _in_use(self, block: int) -> bool:
        return self._pool.references(block) > 1

    def _shorten(self, node: Node, count: int) -> None:
        keep = node.pages
        while keep and node.pages - keep < count and not self._in_use(node.blocks[keep - 1]):
            keep -= 1
        self._counts.evictions += node.pages - keep
        if not keep:
            self.remove(node)
            return
        self._give_back(node, keep)
        self._tree.truncate(node, keep)
        self.order.push(node)

    def _give_back(self, node: Node, keep: int) -> None:
        gone = node.blocks[keep:]
        node.namespace.tenant.pages -= len(gone)
        for block in gone:
            self._held[block] = False
        self._pool.release(gone)
