"""The tree over the block pool: which blocks it holds, which it gives up for room. The pool
wipes a block when its last reference goes, so never while a sequence reads it."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import count

from cloister.prefix.base import Counts, Pool, Storage
from cloister.prefix.node import Namespace, Node, Tenant
from cloister.prefix.tier import State, Tier
from cloister.prefix.tree import Path, Tree


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
        if start < end:
            size = self._tree.page
            digest = sha256(self._tree.tokens_before(node) + node.tokens[: start * size])
            for page in range(start, end):
                digest.update(node.tokens[page * size : (page + 1) * size])
                yield page, digest.digest()


class TreeBlocks:
    """Every change of the tree that takes or gives up blocks, or makes an edge, goes through here."""

    def __init__(self, pool: Pool, tree: Tree, offload: Offload, counts: Counts) -> None:
        self._pool, self._tree, self._offload, self._counts = pool, tree, offload, counts
        self.order = EvictionOrder(tree, lambda node: self._in_use(node.blocks[node.resident - 1]))
        self._nodes_of = array("i", [0]) * pool.total  # in how many nodes each block is

    @property
    def pages(self) -> int:
        return sum(map(bool, self._nodes_of))

    def first_kept(self, blocks: Sequence[int], start: int) -> int:
        """The first block from `start` on that the tree holds already: a block is added only once."""
        return next((at for at in range(start, len(blocks)) if self._nodes_of[blocks[at]]), len(blocks))

    def add(
        self, parent: Node, namespace: Namespace, creator: Namespace, tokens: bytes, blocks: list[int], epoch: int
    ) -> Node:
        self._retain(blocks)
        namespace.tenant.pages += len(blocks)
        continues = namespace is parent.namespace is not self._tree.public and parent.rights == (creator,)
        if continues and not parent.children and parent.resident == parent.pages:
            self._tree.extend(parent, tokens, blocks)
            node = parent
        else:
            node = self._tree.add(parent, namespace, creator, tokens, blocks)
        node.epoch = epoch
        self.order.push(node)
        return node

    def refill(self, path: Path, blocks: Sequence[int]) -> bool:
        """Take pages that only a lower tier had and that were computed again. Whether the whole path is in the pool."""
        at = 0
        for node, pages in path:
            if (start := node.resident) < pages:
                self.lend(node, blocks[at + start : self.first_kept(blocks[: at + pages], at + start)])
                if node.resident < pages:
                    return False
            at += pages
        return True

    def take(self, node: Node, blocks: Sequence[int]) -> None:
        """The caller's references become the tree's."""
        self._count(blocks)
        node.blocks[node.resident : node.resident + len(blocks)] = blocks
        node.resident += len(blocks)
        node.namespace.tenant.pages += len(blocks)
        self.order.push(node)

    def lend(self, node: Node, blocks: Sequence[int]) -> None:
        """In blocks that have another holder too. A copy in a lower tier goes."""
        self._offload.discard(node.blocks[node.resident : node.resident + len(blocks)])
        self._pool.retain(blocks)
        self.take(node, blocks)

    def split(self, node: Node, pages: int) -> Node:
        if pages == node.pages:
            return node
        head = self._tree.split(node, pages)
        self.order.push(node)
        self.order.push(head)
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

    def cut(self, node: Node, pages: int) -> None:
        for child in list(node.children.values()):
            self.drop(child)
        if not pages:
            self.remove(node)
            return
        self._offload.discard(node.blocks[pages:])
        self._tree.truncate(node, pages)

    def remove(self, node: Node) -> None:
        """The node's parent may be an edge afterwards, or part of a chain."""
        parent = node.parent
        assert parent is not None
        self.drop(node)
        if parent is not self._tree.root:
            self.order.push(self._tree.compress(parent))

    def drop(self, top: Node) -> None:
        for node in reversed(list(self._tree.nodes(top))):
            node.namespace.tenant.pages -= node.resident
            self._give_back(node.blocks[: node.resident])
            self._offload.discard(node.blocks[node.resident :])
            self._tree.remove(node)

    def _in_use(self, block: int) -> bool:
        """Ignores readers of a block in several tenants' nodes: a tenant could see that another reads it now."""
        return self._nodes_of[block] == 1 and self._pool.references(block) > 1

    def _shorten(self, node: Node, count: int) -> None:
        keep = resident = node.resident
        while keep and resident - keep < count and not self._in_use(node.blocks[keep - 1]):
            keep -= 1
        gone = node.blocks[keep:resident]
        stored = self._offload.store(node, keep)
        node.blocks[keep:resident] = [*stored, *[LOST] * (len(gone) - len(stored))]
        self._counts.evictions += len(gone)
        self._counts.offloads += len(stored)
        node.namespace.tenant.pages -= len(gone)
        node.resident = keep
        if len(stored) < len(gone):
            self.cut(node, keep + len(stored))
        self._give_back(gone)
        if (above := node.parent) is not None:
            self.order.push(node if keep else above)

    def _retain(self, blocks: Sequence[int]) -> None:
        self._pool.retain(blocks)
        self._count(blocks)

    def _count(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._nodes_of[block] += 1

    def _give_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._nodes_of[block] -= 1
        self._pool.release(blocks)
