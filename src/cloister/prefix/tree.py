"""The radix tree over pages (§VI). Every path is public nodes, then one namespace's private ones: what a request may
not see, it cannot pass. A node that changes leaves its eviction queue; the caller puts it back."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from cloister.prefix.base import BlockPool
from cloister.prefix.node import Namespace, Node, Tenant

# from the root on, each with how many of its pages match; only the last may match in part
Path = list[tuple[Node, int]]


class Tree:
    def __init__(self, page_bytes: int, public: Namespace) -> None:
        self.page, self.public = page_bytes, public
        self.root = Node(public, b"", [], [])

    def search(self, viewer: Namespace, tokens: bytes, most: int, *, public: int) -> Path:
        """The longest beginning that this namespace sees (§VI-A): public nodes in the first `public` pages only."""
        end = min(most, len(tokens) // self.page) * self.page
        return self._search(self.root, 0, viewer, tokens, end, min(end, public * self.page))

    def _search(self, node: Node, at: int, viewer: Namespace, tokens: bytes, end: int, public: int) -> Path:
        path: Path = []
        while at < end and node.children:
            first = tokens[at : at + self.page]
            shared = node.children.get((self.public, first)) if at < public else None
            own = node.children.get((viewer, first)) if viewer is not self.public else None
            if own is not None and shared is not None:
                paths = (
                    self._search_from(shared, at, viewer, tokens, end, public),
                    self._search_from(own, at, viewer, tokens, end, 0),
                )
                return path + max(paths, key=lambda path: sum(pages for _, pages in path))
            child = shared or own
            if child is None:
                break
            pages = self.common(child, tokens, at, end if shared is None else public)
            path.append((child, pages))
            at += pages * self.page
            if pages < child.pages:
                break
            node = child
        return path

    def _search_from(self, child: Node, at: int, viewer: Namespace, tokens: bytes, end: int, public: int) -> Path:
        pages = self.common(child, tokens, at, public or end)
        path: Path = [(child, pages)]
        if pages == child.pages:
            path += self._search(child, at + pages * self.page, viewer, tokens, end, public)
        return path

    def common(self, node: Node, tokens: bytes, at: int, end: int) -> int:
        """Whole pages in common from `at` to `end`. The first page is equal already."""
        page, own = self.page, node.tokens
        high = min(node.pages, (end - at) // page)
        if high == 1 or own.startswith(tokens[at : at + high * page]):
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if own.startswith(tokens[at + low * page : at + middle * page], low * page):
                low = middle
            else:
                high = middle
        return low

    def add(self, parent: Node, namespace: Namespace, creator: Namespace, tokens: bytes, blocks: list[int]) -> Node:
        """The parent has no child with this first page in this namespace."""
        node = Node(namespace, tokens, blocks, [creator])
        self._attach(node, parent)
        return node

    def split(self, node: Node, pages: int) -> Node:
        """Cut a node. The first pages become a new node, which is returned; the given node is its child."""
        above, at = self._leave(node), pages * self.page
        head = Node(node.namespace, node.tokens[:at], node.blocks[:pages], list(node.rights))
        head.epoch, head.compressed = node.epoch, node.compressed
        node.tokens, node.blocks = node.tokens[at:], node.blocks[pages:]
        self._attach(head, above)
        self._attach(node, head)
        return head

    def extend(self, node: Node, tokens: bytes, blocks: list[int]) -> None:
        """Add pages to a private node without children, as if a child were added and compressed at once."""
        node.tokens += tokens
        node.blocks += blocks
        node.compressed = True

    def compress(self, node: Node) -> Node:
        """Join the private chain that this node is part of (§VI-B1). The joined node was the last of the chain."""
        while (child := self._only_child(node)) is not None and self._continues(node, child):
            node = child
        while (above := node.parent) is not None and self._only_child(above) is node and self._continues(above, node):
            self._leave(node)
            higher = self._leave(above)
            node.tokens, node.blocks = above.tokens + node.tokens, above.blocks + node.blocks
            node.epoch, node.compressed = above.epoch, True
            self._attach(node, higher)
        return node

    def truncate(self, node: Node, pages: int) -> None:
        node.tokens, node.blocks = node.tokens[: pages * self.page], node.blocks[:pages]

    def may_publish(self, node: Node) -> bool:
        """Its parent is public and has no public child with this page."""
        above = node.parent
        if above is None or above.namespace is not self.public:
            return False
        return self._key(node, self.public) not in above.children

    def publish(self, node: Node) -> None:
        """The node's present namespace keeps the right to it."""
        owner, above = node.namespace, self._leave(node)
        owner.tenant.pages -= node.pages
        self.public.tenant.pages += node.pages
        node.namespace, node.compressed = self.public, False
        self._attach(node, above)

    def remove(self, node: Node) -> None:
        """The node keeps no references: cycles would leave tokens in memory until the garbage collector runs."""
        self._leave(node)
        node.children, node.tokens, node.blocks, node.rights = {}, b"", [], []

    def nodes(self, below: Node | None = None) -> Iterator[Node]:
        waiting = [below] if below is not None else list(self.root.children.values())
        while waiting:
            node = waiting.pop()
            waiting += node.children.values()
            yield node

    def _key(self, node: Node, namespace: Namespace) -> tuple[Namespace, bytes]:
        return namespace, node.tokens[: self.page]

    def _attach(self, node: Node, parent: Node) -> None:
        node.parent = parent
        parent.children[self._key(node, node.namespace)] = node

    def _leave(self, node: Node) -> Node:
        parent = node.parent
        assert parent is not None
        node.namespace.tenant.queue.remove(node)
        del parent.children[self._key(node, node.namespace)]
        node.parent = None
        return parent

    def _only_child(self, node: Node) -> Node | None:
        return next(iter(node.children.values())) if len(node.children) == 1 else None

    def _continues(self, node: Node, child: Node) -> bool:
        """Both are private and one namespace's; public nodes branch too often to be joined (§VI-B)."""
        return node.namespace is child.namespace is not self.public and node.rights == child.rights


class EvictionOrder:
    """Last pages of least recently used nodes first (SafeKV §VI-B2, §VI-B3). A tenant's hits order its own nodes alone,
    or its loss would show others' hits. Between tenants: above an equal share, then the older last request."""

    def __init__(self, tree: Tree, in_use: Callable[[Node], bool]) -> None:
        self._public = tree.public.tenant
        self._in_use = in_use
        self._serial = count()

    def push(self, node: Node) -> None:
        if node.serial is None and node.parent is not None and not node.children:
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

    def __init__(self, pool: BlockPool, tree: Tree) -> None:
        self._pool, self._tree = pool, tree
        self.evictions = 0  # pages
        self.order = EvictionOrder(tree, lambda node: self._in_use(node.blocks[-1]))
        self._held = bytearray(pool.total)  # whether each block is in a node

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
        continues = namespace is parent.namespace is not self._tree.public and parent.rights == [creator]
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
        self.evictions += node.pages - keep
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
