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
        self.root = Node(self.runs, self.runs.new(NONE, public, public, b""))

    def search(self, owner: Owner, tokens: bytes, most: int, *, sees_public: bool) -> Path:
        """The longest beginning of `tokens` that this owner may see (§VI-A, Search)."""
        end = min(most, len(tokens) // self.page) * self.page
        public = self.public.seat if sees_public else owner.seat
        way = self._search(self.root.run, 0, owner.seat, tokens, end, public)
        return [(Node(self.runs, run), pages) for run, pages in way]

    def _search(self, run: int, at: int, own: int, tokens: bytes, end: int, public: int) -> _Way:
        way: _Way = []
        page, runs, find = self.page, self.runs, self._children.find
        while at < end and runs.child[run] != NONE:
            first = tokens[at : at + page]
            child = NONE if public == NO_SEAT else find(run, public, first)
            if own != public and own != NO_SEAT:
                private = find(run, own, first)
                if private != NONE and child != NONE:
                    shared = self._search_from(child, at, own, tokens, end, public)
                    mine = self._search_from(private, at, own, tokens, end, own)
                    return way + max(shared, mine, key=lambda way: sum(pages for _, pages in way))
                child = private if child == NONE else child
            if child == NONE:
                break
            pages = self._common(child, tokens, at, end)
            way.append((child, pages))
            at += pages * page
            if pages < runs.pages(child):
                break
            run = child
        return way

    def _search_from(self, child: int, at: int, own: int, tokens: bytes, end: int, public: int) -> _Way:
        pages = self._common(child, tokens, at, end)
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
        run = self.runs.new(NONE, owner, creator, content_of(tokens, blocks))
        self._attach(run, parent.run)
        return Node(self.runs, run)

    def split(self, node: Node, pages: int) -> Node:
        """Cut a run where tokens diverge, or where visibility changes. The first pages are a new node, which is
        returned; the node is what is left, and its child. So what is below it need not be told."""
        runs, at = self.runs, pages * self.page
        above, tokens, places, resident = runs.parent[node.run], node.tokens, list(node.blocks), node.resident
        self._detach(node.run)
        runs.leave_heap(node.run)
        head = Node(runs, runs.new(NONE, node.owner, node.creator, content_of(tokens[:at], places[:pages])))
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
        return above is not None and above.owner is self.public and self._twin(node, self.public) == NONE

    def publish(self, node: Node) -> None:
        """Make a run visible to everybody."""
        self._give(node, self.public)
        node.links = node.watched = None

    def demote(self, node: Node, barred_until: float | None = None) -> list[Node]:
        """Make a public run, and all public ones below it, private to whoever brought each; for how long at least.

        What nobody can reach then is cut off and returned: runs of others below it, or the run itself if its creator
        has one like it.
        """
        if self._twin(node, node.creator) != NONE:
            self.remove(node)
            return [node]
        self._give(node, node.creator)
        node.watched = barred_until
        lost: list[Node] = []
        for child in node.children:
            if child.owner is self.public and child.creator is node.owner:
                lost += self.demote(child, barred_until)
            elif child.owner is not node.owner:
                self.remove(child)
                lost.append(child)
        return lost

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

    def _twin(self, node: Node, owner: Owner) -> int:
        """The run beside a node that begins like it and is another's."""
        runs = self.runs
        if owner.seat == NO_SEAT:
            return NONE
        return self._children.find(runs.parent[node.run], owner.seat, runs.first(node.run))

    def _give(self, node: Node, owner: Owner) -> None:
        self._children.remove(node.run)
        node.owner.account.pages -= node.resident
        self.runs.give(node.run, owner)
        owner.account.pages += node.resident
        self._children.add(node.run)

    def _only_child(self, node: Node) -> Node | None:
        runs = self.runs
        child = runs.child[node.run]
        return Node(runs, child) if child != NONE and runs.after[child] == NONE else None

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
