"""The radix tree over pages: search, split, path compression, publication (§VI). It moves no keys and values.
Every path is public nodes first, then private nodes of one namespace, so a request that may not see a page cannot reach
the pages below it. A node that changes leaves its eviction queue; the caller puts it back (EvictionOrder.push)."""

from collections.abc import Iterator

from cloister.prefix.node import Namespace, Node

# from the root on, each with how many of its pages match; only the last may match in part
Path = list[tuple[Node, int]]


class Tree:
    def __init__(self, page_bytes: int, public: Namespace) -> None:
        self.page, self.public = page_bytes, public
        self.root = Node(public, b"", [])

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
        node = Node(namespace, tokens, blocks)
        if namespace is not creator:
            node.add_right(creator)
        self._attach(node, parent)
        return node

    def split(self, node: Node, pages: int) -> Node:
        """Cut a node. The first pages become a new node, which is returned; the given node is its child."""
        above, at = self._leave(node), pages * self.page
        head = Node(node.namespace, node.tokens[:at], node.blocks[:pages])
        head.shared_rights = None if node.shared_rights is None else list(node.shared_rights)
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
        node.add_right(owner)
        owner.tenant.pages -= node.pages
        self.public.tenant.pages += node.pages
        node.namespace, node.compressed = self.public, False
        self._attach(node, above)

    def remove(self, node: Node) -> None:
        """The node keeps no references: cycles would leave tokens in memory until the garbage collector runs."""
        self._leave(node)
        node.children, node.tokens, node.blocks = {}, b"", []
        node.shared_rights = None

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
