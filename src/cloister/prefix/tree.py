"""The radix tree over pages: search, split, path compression, marks. One for public and private nodes (SafeKV §VI).

Every path is public nodes first, then private ones of a single owner: what follows a private page is private, too, and
who may not see a page cannot reach what is below it. Tokens are compared by content. The tree knows no references,
tiers or epochs; it moves no keys and values, whatever is marked.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloister.prefix.node import TAG_BYTES, Account, Link, Node, Owner

Path = list[tuple[Node, int]]
"""Nodes from the root on, each with how many of its pages match; only the last may match in part."""


class Tree:
    """`public` owns what everybody sees."""

    def __init__(self, page_bytes: int) -> None:
        self._page = page_bytes
        self.public = Owner(0, Account(""))
        self.root = Node(None, self.public, self.public, b"", [])

    def search(self, owner: Owner, tokens: bytes, most: int, *, sees_public: bool) -> Path:
        """The longest beginning of `tokens` that this owner may see (§VI-A, Search)."""
        return self._search(self.root, 0, owner, tokens, most * self._page, self.public if sees_public else owner)

    def _search(self, node: Node, at: int, owner: Owner, tokens: bytes, end: int, public: Owner) -> Path:
        path: Path = []
        page = self._page
        while at < end and node.children:
            first = tokens[at : at + page]
            child = node.children.get(public.tag + first)
            if owner is not public:
                own = node.children.get(owner.tag + first)
                if own is not None and child is not None:
                    shared = self._search_from(child, at, owner, tokens, end, public)
                    private = self._search_from(own, at, owner, tokens, end, owner)
                    return path + max(shared, private, key=lambda way: sum(pages for _, pages in way))
                child = own if child is None else child
            if child is None:
                break
            pages = self._common(child, tokens, at, end)
            path.append((child, pages))
            at += pages * page
            if pages < len(child.blocks):
                break
            node = child
        return path

    def _search_from(self, child: Node, at: int, owner: Owner, tokens: bytes, end: int, public: Owner) -> Path:
        pages = self._common(child, tokens, at, end)
        path: Path = [(child, pages)]
        if pages == len(child.blocks):
            path += self._search(child, at + pages * self._page, owner, tokens, end, public)
        return path

    def _common(self, node: Node, tokens: bytes, at: int, end: int) -> int:
        """Whole pages that a node's run and the tokens from `at` have in common; the first is known to be."""
        page, run = self._page, node.run
        high = min(len(node.blocks), (end - at) // page)
        if high == 1 or run[TAG_BYTES : TAG_BYTES + high * page] == tokens[at : at + high * page]:
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            ours = run[TAG_BYTES + low * page : TAG_BYTES + middle * page]
            if ours == tokens[at + low * page : at + middle * page]:
                low = middle
            else:
                high = middle
        return low

    def add(self, parent: Node, owner: Owner, creator: Owner, tokens: bytes, blocks: list[int]) -> Node:
        """A new run below a node that has none that begins like it and belongs to the same owner."""
        node = Node(parent, owner, creator, tokens, blocks)
        if parent.children is None:
            parent.children = {}
        parent.children[self._key(node)] = node
        return node

    def split(self, node: Node, pages: int) -> Node:
        """Cut a run where tokens diverge, or where visibility changes: the rest becomes the node's child."""
        at = TAG_BYTES + pages * self._page
        tail = Node(node, node.owner, node.creator, node.run[at:], node.blocks[pages:])
        tail.resident = max(0, node.resident - pages)
        tail.epoch, tail.hits, tail.users = node.epoch, node.hits, node.users
        if node.links is not None:
            head, rest = _cut(node.links, pages)
            tail.epoch, tail.hits, tail.users = rest[0][1:]
            node.links = head if len(head) > 1 else None
            tail.links = rest if len(rest) > 1 else None
        tail.watched = node.watched if node.watched is None or isinstance(node.watched, float) else node.watched.copy()
        tail.children = node.children
        for child in (tail.children or {}).values():
            child.parent = tail
        node.run, node.blocks = node.run[:at], node.blocks[:pages]
        node.resident = min(node.resident, pages)
        node.children = {self._key(tail): tail}
        return tail

    def extend(self, node: Node, tokens: bytes, blocks: list[int], epoch: int) -> None:
        """Add pages to a private run that nothing follows, as if a node were added and compressed at once."""
        self._link(node, Link(len(blocks), epoch, 0, 0))
        node.run += tokens
        node.blocks += blocks
        node.resident += len(blocks)

    def compress(self, node: Node) -> Node:
        """Make a private chain of one owner without branches one node, its `pri_root` (§VI-B1), which is returned."""
        while node.parent is not None and self._only_child(node.parent) is node and self._alike(node.parent, node):
            node = node.parent
        while (child := self._only_child(node)) is not None and self._alike(node, child):
            for link in child.links or [Link(len(child.blocks), child.epoch, child.hits, child.users)]:
                self._link(node, link)
            if node.resident == len(node.blocks):
                node.resident += child.resident
            node.run += child.run[TAG_BYTES:]
            node.blocks += child.blocks
            node.children = child.children
            for below in (node.children or {}).values():
                below.parent = node
            child.parent = None
        return node

    def decompress(self, node: Node) -> None:
        """Take compression back: the nodes that made the chain are nodes again, with what was known of each."""
        for link in (node.links or [])[:0:-1]:
            self.split(node, len(node.blocks) - link.pages)

    def truncate(self, node: Node, pages: int) -> None:
        """Cut off the run's last pages, which nothing follows."""
        node.run, node.blocks = node.run[: TAG_BYTES + pages * self._page], node.blocks[:pages]
        node.resident = min(node.resident, pages)
        if node.links is not None:
            head, _ = _cut(node.links, pages)
            node.links = head if len(head) > 1 else None

    def may_publish(self, node: Node) -> bool:
        """Whether a private run may become public: it must follow public pages, and no public run may begin like it
        beside it."""
        assert node.parent is not None
        twin = self._key(node, self.public)
        return node.parent.owner is self.public and twin not in (node.parent.children or {})

    def publish(self, node: Node) -> None:
        """Make a run visible to everybody."""
        self._give(node, self.public)
        node.links = node.watched = None

    def demote(self, node: Node, barred_until: float | None = None) -> list[Node]:
        """Make a public run, and all public ones below it, private to whoever brought each; for how long at least.

        What nobody can reach then is cut off and returned: runs of others below it, or the run itself if its creator
        has one like it.
        """
        assert node.parent is not None
        twin = self._key(node, node.creator)
        if twin in (node.parent.children or {}):
            self.remove(node)
            return [node]
        self._give(node, node.creator)
        node.watched = barred_until
        lost: list[Node] = []
        for child in list((node.children or {}).values()):
            if child.owner is self.public and child.creator is node.owner:
                lost += self.demote(child, barred_until)
            elif child.owner is not node.owner:
                self.remove(child)
                lost.append(child)
        return lost

    def remove(self, node: Node) -> None:
        """Take a node and all below it out of the tree."""
        assert node.parent is not None
        siblings = node.parent.children
        assert siblings is not None
        del siblings[self._key(node)]
        node.parent.children = siblings or None
        node.parent = None

    def nodes(self, below: Node | None = None) -> Iterator[Node]:
        """All nodes, or one and all below it, parents first."""
        waiting = [below] if below is not None else list((self.root.children or {}).values())
        while waiting:
            node = waiting.pop()
            waiting += (node.children or {}).values()
            yield node

    def tokens_before(self, node: Node) -> bytes:
        """The tokens of all pages above a node's."""
        runs: list[bytes] = []
        while node.parent is not None:
            node = node.parent
            runs.append(node.tokens)
        return b"".join(reversed(runs))

    def _key(self, node: Node, owner: Owner | None = None) -> bytes:
        """Of a node among its siblings, as it is or as another's would be. Of one page: the run itself, not a copy."""
        key = node.run[: TAG_BYTES + self._page]
        return key if owner is None else owner.tag + key[TAG_BYTES:]

    def _give(self, node: Node, owner: Owner) -> None:
        assert node.parent is not None and node.parent.children is not None
        del node.parent.children[self._key(node)]
        node.owner.account.pages -= node.resident
        node.owner, node.run = owner, owner.tag + node.run[TAG_BYTES:]
        owner.account.pages += node.resident
        node.parent.children[self._key(node)] = node

    def _link(self, node: Node, link: Link) -> None:
        if node.links is None:
            node.links = [Link(len(node.blocks), node.epoch, node.hits, node.users)]
        node.links.append(link)

    def _only_child(self, node: Node) -> Node | None:
        return next(iter(node.children.values())) if node.children and len(node.children) == 1 else None

    def _alike(self, node: Node, child: Node) -> bool:
        """Whether a private run goes on in its child; public runs branch too often to be worth it (§VI-B)."""
        alike = node.owner is child.owner is not self.public and node.creator is child.creator
        return alike and child.watched in (None, node.watched)


def _cut(links: list[Link], pages: int) -> tuple[list[Link], list[Link]]:
    """The links of the first so many pages, and those of the rest; one that is cut counts in both."""
    head: list[Link] = []
    for index, link in enumerate(links):
        if pages < link.pages:
            rest = [link._replace(pages=link.pages - pages), *links[index + 1 :]]
            return head + ([link._replace(pages=pages)] if pages else []), rest
        head.append(link)
        pages -= link.pages
    return head, []
