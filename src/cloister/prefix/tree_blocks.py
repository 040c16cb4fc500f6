"""The tree over the block pool: which blocks it holds, what is given up for room, what is dropped.

A block has one reference for each run that it is in. There may be several, each another tenant's: then they were a
public run, which was demoted (inheritance.py). A run gives a page up when it is evicted, forgotten or unreachable; the
pool wipes the block when nothing holds it any more, so never while a sequence reads it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from cloister.prefix.base import Counts, Pool
from cloister.prefix.eviction import EvictionOrder
from cloister.prefix.node import Node
from cloister.prefix.offload import LOST, Offload
from cloister.prefix.owners import Account, Owner
from cloister.prefix.tree import Path, Tree


class TreeBlocks:
    """Every change of the tree that takes or gives up blocks, or makes an edge, goes through here."""

    def __init__(self, pool: Pool, tree: Tree, offload: Offload, counts: Counts) -> None:
        self._pool, self._tree, self._offload, self._counts = pool, tree, offload, counts
        self.order = EvictionOrder(tree, self._last_page_used)
        self._kept = array("i", [0]) * pool.total
        """In how many runs each block is."""

    @property
    def pages(self) -> int:
        """Blocks that the tree holds."""
        return sum(map(bool, self._kept))

    def first_kept(self, blocks: Sequence[int], start: int) -> int:
        """Where the first block is that the tree holds elsewhere: it is added in one place only."""
        kept = bytes(map(bool, map(self._kept.__getitem__, blocks[start:]))).find(1)
        return len(blocks) if kept < 0 else start + kept

    def add(self, parent: Node, owner: Owner, creator: Owner, tokens: bytes, blocks: list[int], epoch: int) -> Node:
        """Keep these blocks: pages of their own below a node, or the rest of a private chain."""
        self._retain(blocks)
        owner.account.pages += len(blocks)
        alike = owner is parent.owner is not self._tree.public and parent.holders == (creator,)
        if alike and not parent.has_children and parent.resident == parent.pages:
            self._tree.extend(parent, tokens, blocks, epoch)
            node = parent
        else:
            node = self._tree.add(parent, owner, creator, tokens, blocks)
        node.epoch = epoch
        self.order.push(node)
        return node

    def refill(self, path: Path, blocks: Sequence[int]) -> bool:
        """Pages that only a lower tier had, and that were computed again, are in the pool again; whether all are."""
        at = 0
        for node, pages in path:
            if (start := node.resident) < pages:
                fresh = blocks[at + start : self.first_kept(blocks[: at + pages], at + start)]
                self._offload.discard(node.places(start, start + len(fresh)))
                self._retain(fresh)
                self._settle(node, fresh)
                if node.resident < pages:
                    return False
            at += pages
        return True

    def take(self, node: Node, blocks: Sequence[int]) -> None:
        """A run's next pages are in these blocks; the caller's references to them are the tree's from now on."""
        self._count(blocks)
        self._settle(node, blocks)

    def lend(self, node: Node, blocks: Sequence[int]) -> None:
        """A run's next pages are in these blocks, which another run holds too; a copy in a lower tier goes."""
        start = node.resident
        self._offload.discard(node.places(start, start + len(blocks)))
        self._retain(blocks)
        self._settle(node, blocks)

    def inherit(self, parent: Node, owner: Owner, tokens: bytes, places: Sequence[int], like: Node) -> Node:
        """A run of the owner's below a node, in the same places as another, and as used as that was. Blocks in the pool
        are both runs'; what is in a lower tier is the new run's alone."""
        node = self._tree.add(parent, owner, owner, tokens, list(places))
        blocks = [place for place in places if place >= 0]
        self._retain(blocks)
        node.resident = len(blocks)
        owner.account.pages += len(blocks)
        node.use_as(like.as_link)
        return node

    def split(self, node: Node, pages: int) -> Node:
        """The node's first pages, as one of their own."""
        if pages == node.pages:
            return node
        head = self._tree.split(node, pages)
        self.order.push(node)
        self.order.push(head)
        return head

    def evict(self, count: int, accounts: list[Account]) -> None:
        goal = self._pool.free + count
        share = self._pool.total // (len(accounts) + 1)
        for node in self.order.victims(accounts, share):
            if self._pool.free < goal:
                self._shorten(node, goal - self._pool.free)
            if self._pool.free >= goal:
                self.order.push(node)
                return

    def cut(self, node: Node, pages: int) -> None:
        """Drop a run's pages from here on, none of them in the pool, and all that is below it."""
        for child in node.children:
            self._tree.remove(child)
            self.drop(child)
        if not pages:
            self.remove(node)
            return
        self._offload.discard(node.places(pages, node.pages))
        self._tree.truncate(node, pages)

    def remove(self, node: Node) -> None:
        """Take a node and all below it out; what is left above may be an edge now, or a chain."""
        parent = node.parent
        assert parent is not None
        self._tree.remove(node)
        self.drop(node)
        if parent != self._tree.root:
            self.order.push(self._tree.compress(parent))

    def drop(self, removed: Node) -> None:
        """Give up all that a node holds which is out of the tree, and what those below it hold."""
        for node in reversed(list(self._tree.nodes(removed))):
            node.owner.account.pages -= node.resident
            self._give_back(node.places(0, node.resident))
            self._offload.discard(node.places(node.resident, node.pages))
            self._tree.free(node)

    def _last_page_used(self, node: Node) -> bool:
        [last] = node.places(node.resident - 1, node.resident)
        return self._in_use(last)

    def _in_use(self, block: int) -> bool:
        """Whether a sequence reads it. A block that is in several tenants' runs may leave any of them at any time: else
        one of them could see that another reads it now."""
        return self._kept[block] == 1 and self._pool.references(block) > 1

    def _shorten(self, node: Node, count: int) -> None:
        """Give up at most so many pages at the run's end, from the last on."""
        keep = resident = node.resident
        blocks = node.places(0, resident)
        while keep and resident - keep < count and not self._in_use(blocks[keep - 1]):
            keep -= 1
        gone = blocks[keep:]
        stored = self._offload.store(node, keep)
        node.set_places(keep, [*stored, *[LOST] * (len(gone) - len(stored))])
        self._counts.evictions += len(gone)
        self._counts.offloads += len(stored)
        node.owner.account.pages -= len(gone)
        node.resident = keep
        if len(stored) < len(gone):
            self.cut(node, keep + len(stored))
        self._give_back(gone)
        if (above := node.parent) is not None:
            self.order.push(node if keep else above)

    def _settle(self, node: Node, blocks: Sequence[int]) -> None:
        node.set_places(node.resident, blocks)
        node.resident += len(blocks)
        node.owner.account.pages += len(blocks)
        self.order.push(node)

    def _retain(self, blocks: Sequence[int]) -> None:
        self._pool.retain(blocks)
        self._count(blocks)

    def _count(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._kept[block] += 1

    def _give_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._kept[block] -= 1
        self._pool.release(blocks)
