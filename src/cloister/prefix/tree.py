"""The radix tree over pages: search, split, path compression, marks. One for public and private nodes (SafeKV §VI).

Every path is public nodes first, then private ones of a single owner: what follows a private page is private, too, and
who may not see a page cannot reach what is below it. Tokens are compared by content. The tree knows no references,
tiers or epochs; it moves no keys and values, whatever is marked. What it changes leaves its account's heap: whoever
changed it puts it back.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloister.prefix.children import Children
from cloister.prefix.node import Link, Node
from cloister.prefix.owners import NO_SEAT, Owner
from cloister.prefix.runs import NONE, Runs, content_of

Path = list[tuple[Node, int]]
"""Nodes from the root on, each with how many of its pages match; only the last may match in part."""
_Way = list[tuple[int, int]]
"""The same of runs, by number."""


class Tree:
    """`public` owns what everybody sees. So many runs are expected at most; for more, the table of children grows."""

    def __init__(self, page_bytes: int, public: Owner, expected: int = 0) -> None:
        self.page = page_bytes
        self.runs = Runs(page_bytes)
        self._children = Children(self.runs, expected)
        self.public = public
        self.root = Node(self.runs, self.runs.new(NONE, public, b""))

    def search(self, owner: Owner, tokens: bytes, most: int, *, public: int) -> Path:
        """The longest beginning of `tokens` that this owner may see (§VI-A, Search). Of what everybody sees it sees
        the first `public` pages: those that are public in its own prompt."""
        end = min(most, len(tokens) // self.page) * self.page
        way = self._search(self.root.run, 0, owner.seat, tokens, end, min(end, public * self.page))
        return [(Node(self.runs, run), pages) for run, pages in way]

    def _search(self, run: int, at: int, own: int, tokens: bytes, end: int, public: int) -> _Way:
        """From `at` on, below a run; up to `public` in what everybody sees, both in bytes."""
        way: _Way = []
        page, runs, find, everybody = self.page, self.runs, self._children.find, self.public.seat
        while at < end and runs.child[run] != NONE:
            first = tokens[at : at + page]
            shared = find(run, everybody, first) if at < public else NONE
            child = find(run, own, first) if own not in (NO_SEAT, everybody) else NONE
            if child != NONE and shared != NONE:
                ways = (
                    self._search_from(shared, at, own, tokens, end, public),
                    self._search_from(child, at, own, tokens, end, 0),
                )
                return way + max(ways, key=lambda way: sum(pages for _, pages in way))
            until = end
            if shared != NONE:
                child, until = shared, public
            if child == NONE:
                break
            pages = self._common(child, tokens, at, until)
            way.append((child, pages))
            at += pages * page
            if pages < runs.pages(child):
                break
            run = child
        return way

    def _search_from(self, child: int, at: int, own: int, tokens: bytes, end: int, public: int) -> _Way:
        pages = self._common(child, tokens, at, public or end)
        way: _Way = [(child, pages)]
        if pages == self.runs.pages(child):
            way += self._search(child, at + pages * self.page, own, tokens, end, public)
        return way

    def _common(self, run: int, tokens: bytes, at: int, end: int) -> int:
        """Whole pages that a run and the tokens from `at` have in common; the first is known to be."""
        page, content = self.page, self.runs.content[run]
        high = min(self.runs.pages(run), (end - at) // page)
        if high == 1 or content.startswith(tokens[at : at + high * page]):
            return high
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            if content.startswith(tokens[at + low * page : at + middle * page], low * page):
                low = middle
            else:
                high = middle
        return low

    def add(self, parent: Node, owner: Owner, creator: Owner, tokens: bytes, blocks: list[int]) -> Node:
        """A new run below a node that has none that begins like it and belongs to the same owner."""
        run = self.runs.new(NONE, owner, content_of(tokens, blocks))
        if owner is not creator:
            self.runs.add_right(run, creator)
        self._attach(run, parent.run)
        return Node(self.runs, run)

    def split(self, node: Node, pages: int) -> Node:
        """Cut a run where tokens diverge, or where visibility changes. The first pages are a new node, which is
        returned; the node is what is left, and its child. So what is below it need not be told."""
        runs, at = self.runs, pages * self.page
        above, tokens, places, resident = runs.parent[node.run], node.tokens, list(node.blocks), node.resident
        self._detach(node.run)
        runs.leave_heap(node.run)
        head = Node(runs, runs.new(NONE, node.owner, content_of(tokens[:at], places[:pages])))
        runs.copy_rights(node.run, head.run)
        head.use_as(node.as_link)
        if (links := node.links) is not None:
            head.links, rest = _cut(links, pages)
            node.use_as(rest[0])
            node.links = rest
        runs.content[node.run] = content_of(tokens[at:], places[pages:])
        head.resident, node.resident = min(resident, pages), max(0, resident - pages)
        head.watched = watched = node.watched
        if watched is not None and not isinstance(watched, float):
            node.watched = watched.copy()
        self._attach(head.run, above)
        self._attach(node.run, head.run)
        return head

    def extend(self, node: Node, tokens: bytes, blocks: list[int], epoch: int) -> None:
        """Add pages to a private run that nothing follows, as if a node were added and compressed at once."""
        node.add_link(Link(len(blocks), epoch, 0, 0))
        self.runs.content[node.run] = content_of(node.tokens + tokens, [*node.blocks, *blocks])
        node.resident += len(blocks)

    def compress(self, node: Node) -> Node:
        """Make a private chain of one owner without branches one node, its `pri_root` (§VI-B1), which is returned; it
        is what was the last of them, so that what is below it need not be told."""
        while (child := self._only_child(node)) is not None and self._alike(node, child):
            node = child
        runs = self.runs
        while (above := node.parent) is not None and self._only_child(above) == node and self._alike(above, node):
            for link in node.links or [node.as_link]:
                above.add_link(link)
            content = content_of(above.tokens + node.tokens, [*above.blocks, *node.blocks])
            self._detach(node.run)
            runs.leave_heap(node.run)
            higher = runs.parent[above.run]
            self._detach(above.run)
            node.resident = above.resident + (node.resident if above.resident == above.pages else 0)
            node.links, node.watched = above.links, above.watched
            node.use_as(above.as_link)
            runs.content[node.run] = content
            runs.free(above.run)
            self._attach(node.run, higher)
        return node

    def decompress(self, node: Node) -> None:
        """Take compression back: the nodes that made the chain are nodes again, with what was known of each."""
        for link in (node.links or [])[:0:-1]:
            node = self.split(node, node.pages - link.pages)

    def truncate(self, node: Node, pages: int) -> None:
        """Cut off the run's last pages, which nothing follows."""
        links = node.links
        self.runs.content[node.run] = content_of(node.tokens[: pages * self.page], list(node.places(0, pages)))
        node.resident = min(node.resident, pages)
        if links is not None:
            node.links, _ = _cut(links, pages)

    def may_publish(self, node: Node) -> bool:
        """Whether a private run may become public: it must follow public pages, and no public run may begin like it
        beside it."""
        above = node.parent
        if above is None or above.owner is not self.public:
            return False
        return self.find(above, self.public, node.tokens[: self.page]) is None

    def publish(self, node: Node) -> None:
        """Make a run visible to everybody; the right to it stays its owner's."""
        owner = node.owner
        node.add_holder(owner)
        self._children.remove(node.run)
        owner.account.pages -= node.resident
        self.runs.give(node.run, self.public)
        self.public.account.pages += node.resident
        self._children.add(node.run)
        node.links = node.watched = None

    def find(self, parent: Node, owner: Owner, first: bytes) -> Node | None:
        """The run of this owner below a node that begins with this page."""
        run = NONE if owner.seat == NO_SEAT else self._children.find(parent.run, owner.seat, first)
        return None if run == NONE else Node(self.runs, run)

    def common(self, node: Node, tokens: bytes) -> int:
        """How many pages a run and these tokens have in common; the first is known to be."""
        return self._common(node.run, tokens, 0, len(tokens))

    def remove(self, node: Node) -> None:
        """Take a node and all below it out of the tree. Who has given back what they hold frees each of them."""
        self._detach(node.run)

    def free(self, node: Node) -> None:
        """Forget a node that was removed, or that was below one; whoever frees all of them lists them first."""
        if not node.is_gone:
            self._detach(node.run)
        self.runs.free(node.run)

    def nodes(self, below: Node | None = None) -> Iterator[Node]:
        """All nodes, or one and all below it, parents first."""
        waiting = [below] if below is not None else self.root.children
        while waiting:
            node = waiting.pop()
            waiting += node.children
            yield node

    def tokens_before(self, node: Node) -> bytes:
        """The tokens of all pages above a node's."""
        runs: list[bytes] = []
        above = node.parent
        while above is not None:
            runs.append(above.tokens)
            above = above.parent
        return b"".join(reversed(runs))

    def _attach(self, run: int, parent: int) -> None:
        self.runs.attach(run, parent)
        self._children.add(run)

    def _detach(self, run: int) -> None:
        self._children.remove(run)
        self.runs.detach(run)

    def _only_child(self, node: Node) -> Node | None:
        runs = self.runs
        child = runs.child[node.run]
        return Node(runs, child) if child != NONE and runs.after[child] == NONE else None

    def _alike(self, node: Node, child: Node) -> bool:
        """Whether a private run goes on in its child; public runs branch too often to be worth it (§VI-B)."""
        alike = node.owner is child.owner is not self.public and node.holders == child.holders
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
