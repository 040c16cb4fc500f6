"""The prefix cache of the service: a radix tree over the block pool, with visibility per tenant (SafeKV §VI).

A block in the tree has one reference of the tree's. It is given up, and wiped by the pool, when none other holds it and
it is evicted, forgotten or unreachable; never while a sequence reads it. Labels come from outside, late or not at all:
until then a page is private, and a late label costs hits, nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from itertools import count
from weakref import WeakValueDictionary

from cloister.prefix.base import NOTHING, TOKEN_BYTES, Counts, Found, Pool, PrefixCache, PrefixKey, Storage
from cloister.prefix.eviction import EvictionOrder
from cloister.prefix.monitor import Action, Monitor, Watched
from cloister.prefix.node import Account, Node, Owner
from cloister.prefix.policy import POLICIES, Policy
from cloister.prefix.tier import State, Tier
from cloister.prefix.tree import Path, Tree

LOOKUPS_PER_EPOCH = 32
LOST = -(1 << 62)
"""In a place's place: what was there is nowhere any more."""
MOST_UNLABELLED = 4096
"""Requests that wait for their label; the oldest of more stay private."""


class _Unlabelled:
    """A request whose last label or whose last pages are still to come; `public_pages` as far as labels say."""

    __slots__ = ("complete", "key", "labelled", "public_pages")

    def __init__(self, key: PrefixKey) -> None:
        self.key = key
        self.public_pages = 0
        self.labelled = self.complete = False


class RadixCache(PrefixCache):
    """What leaves the pool goes from `storage` to `tier`, if there is one, and comes back when it is found. `monitor`
    judges who finds what was labelled or marked public (§V-C); what the policy makes public anyway it does not watch.
    """

    def __init__(
        self, tier: Tier | None = None, monitor: Monitor | None = None, storage: Storage | None = None
    ) -> None:
        assert (tier is None) == (storage is None)
        self._tier, self._storage = tier, storage
        self._monitor = monitor
        self._owners: WeakValueDictionary[tuple[str, str], Owner] = WeakValueDictionary()
        self._accounts: WeakValueDictionary[str, Account] = WeakValueDictionary()
        self._numbers = count(1)
        self._unlabelled: OrderedDict[int, _Unlabelled] = OrderedDict()
        self._lookups = self._epoch = 0
        self._counts = Counts()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        self._pool = pool
        self._page = page_tokens * TOKEN_BYTES
        self.tree = Tree(self._page)
        self._order = EvictionOrder(self.tree.public.account, self._last_page_used)
        self._kept = bytearray(pool.total)

    def lookup(self, key: PrefixKey, most: int) -> Found:
        policy = POLICIES[key.policy]
        if not policy.reuses:
            return NOTHING
        self._lookups += 1
        self._epoch = self._lookups // LOOKUPS_PER_EPOCH
        viewer, creator = self._whose(key, policy)
        creator.account.seen = viewer.account.seen = self._epoch
        if policy.labelled_public and not key.salt and key.request_id not in self._unlabelled:
            self._await_label(key)
        path = self._allowed(self._visible(viewer, key, policy, most), key)
        most = sum(pages for _, pages in path)
        if path and path[-1][0].resident < path[-1][1]:
            path = self._recalled(path, lambda: self._visible(viewer, key, policy, most))
        blocks: list[int] = []
        public = 0
        coming = False
        for node, pages in path:
            coming = node.resident < pages
            pages = min(pages, node.resident)
            if pages:
                node.touch(creator, self._epoch)
            blocks += node.blocks[:pages]
            if node.owner is self.tree.public:
                public += pages
            if coming:
                break
        self._pool.retain(blocks)
        return Found(tuple(blocks), public, coming)

    def prefetch(self, key: PrefixKey, most: int) -> None:
        policy = POLICIES[key.policy]
        if self._tier is not None and policy.reuses:
            path = self._visible(self._whose(key, policy)[0], key, policy, most)
            if path and path[-1][0].resident < path[-1][1]:
                self._fetch(path)

    def settle(self, seconds: float) -> bool:
        return self._tier is None or self._tier.settle(seconds)

    def _allowed(self, path: Path, key: PrefixKey) -> Path:
        """As much of a path as the monitor lets this tenant have now; a run that looks probed is demoted first."""
        for at, (node, pages) in enumerate(path):
            if self._monitor is None or not isinstance(node.watched, Watched):
                continue
            if pages < len(node.blocks) and node.watched.owner != key.tenant:
                self._order.push(self.tree.split(node, pages))  # what was not asked for was not probed
            action = self._monitor.hit(node.watched, key.tenant, key.request_id)
            if action is not None:
                if action is Action.DEMOTE:
                    self._counts.demotions += 1
                    self.demote(node, self._monitor.barred_until())
                return path[:at]
        return path

    def _recalled(self, path: Path, search: Callable[[], Path]) -> Path:
        """Put into the pool what lower tiers have ready of a path (§VI-A), and have the rest brought."""
        here, path = self._fetch(path), search()  # what was lost is cut off
        if not here:
            return path
        found = [block for node, pages in path for block in node.blocks[:pages] if block >= 0]
        self._pool.retain(found)  # so that what makes room is not what was found
        if here > self._pool.free:
            self.evict(here - self._pool.free)
            path = search()  # nodes may have been joined
        self._pool.release(found)
        for node, pages in path:
            while node.resident < pages and here and self._recall(node):
                here -= 1
            if node.resident < pages:
                break
        return search()

    def _fetch(self, path: Path) -> int:
        """Ask lower tiers for all pages of a path that are not in the pool; how many of the next can be had now. What
        follows a page that was lost is lost, too."""
        assert self._tier is not None
        here, all_here = 0, True
        for node, pages in path:
            for page, bound in self._bounds(node, node.resident, pages):
                match self._tier.fetch(~node.blocks[page], bound):
                    case State.HERE:
                        here += all_here
                    case State.COMING:
                        all_here = False
                    case State.LOST:
                        node.blocks[page] = LOST
                        self._cut(node, page)
                        return here
        return here

    def _bounds(self, node: Node, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """For pages of a run: what binds each of them to all tokens up to its end."""
        if start < end:
            tokens = node.tokens
            digest = sha256(self.tree.tokens_before(node) + tokens[: start * self._page])
            for page in range(start, end):
                digest.update(tokens[page * self._page : (page + 1) * self._page])
                yield page, digest.digest()

    def _recall(self, node: Node) -> bool:
        """Bring one page back, the first that is not in the pool. Whether that could be done now."""
        assert self._tier is not None and self._storage is not None
        page = node.resident
        if not self._pool.free or (data := self._tier.take(~node.blocks[page])) is None:
            return False
        taken = self._pool.allocate(1)
        assert taken is not None
        self._storage.write(taken[0], data)
        self._settle_page(node, page, taken[0])
        self._counts.recalls += 1
        return True

    def _settle_page(self, node: Node, page: int, block: int) -> None:
        """The page is in this block, which the tree holds a reference to."""
        node.blocks[page] = block
        node.resident = page + 1
        node.owner.account.pages += 1
        self._kept[block] = 1
        self._order.push(node)

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        policy = POLICIES[key.policy]
        if not policy.reuses:
            return
        viewer, creator = self._whose(key, policy)
        public = self._public_pages(key, policy, viewer, len(blocks))
        if public and viewer is not self.tree.public:
            self._publish(viewer, key, policy, public)
        path = self._visible(viewer, key, policy, len(blocks))
        if not self._refill(path, blocks):
            return
        found = sum(pages for _, pages in path)
        new = list(blocks[found : self._first_kept(blocks, found)])
        if not new:
            return
        parent = self._end_of(path)
        shared = max(0, public - found) if parent.owner is self.tree.public else 0
        if shared:
            parent = self._add(parent, self.tree.public, creator, key, found, new[:shared])
            self._watch(parent, policy)
        if new[shared:]:
            self._add(parent, viewer, creator, key, found + len(new[:shared]), new[shared:])

    def _refill(self, path: Path, blocks: Sequence[int]) -> bool:
        """Pages that only a lower tier had, and that were computed again, are in the pool again; whether all are."""
        at = 0
        for node, pages in path:
            for page in range(node.resident, pages):
                block = blocks[at + page]
                if self._kept[block]:
                    return False
                self._discard(node.blocks[page])
                self._pool.retain((block,))
                self._settle_page(node, page, block)
            at += pages
        return True

    def evict(self, count: int) -> None:
        goal = self._pool.free + count
        accounts = list(self._accounts.values())
        share = self._pool.total // (len(accounts) + 1)
        for node in self._order.victims(accounts, share):
            if self._pool.free < goal:
                self._shorten(node, goal - self._pool.free)
            if self._pool.free >= goal:
                self._order.push(node)
                return

    def label(self, request_id: int, public_tokens: int, *, final: bool = True) -> None:
        waiting = self._unlabelled.get(request_id)
        if waiting is None or waiting.labelled:
            return
        key, policy = waiting.key, POLICIES[waiting.key.policy]
        waiting.public_pages = max(waiting.public_pages, key.paging.pages(public_tokens))
        waiting.labelled = final
        self._publish(self._whose(key, policy)[0], key, policy, waiting.public_pages)
        self._settle(request_id)

    def demote(self, node: Node, barred_until: float | None = None) -> None:
        """Make a public run private again, and what is below it; who uses it now keeps its blocks till the end.

        Until the time given, no label makes it public again.
        """
        above = node.parent
        if above is None or node.owner is not self.tree.public:
            return
        for lost in self.tree.demote(node, barred_until):
            self._drop(lost)
        self._order.push(above)
        if node.parent is not None:
            for each in self.tree.nodes(self.tree.compress(node)):
                self._order.push(each)

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, waiting in self._unlabelled.items() if waiting.key.tenant == tenant]:
            del self._unlabelled[request_id]
        if tenant not in self._accounts:  # it has nothing here, and need not cost others a walk
            return
        for node in list(self.tree.nodes()):
            if node.creator.account.name == tenant and node.parent is not None:
                self._remove(node)

    @property
    def counts(self) -> Counts:
        return self._counts

    @property
    def pages(self) -> int:
        """Blocks that the tree holds."""
        return sum(self._kept)

    def _whose(self, key: PrefixKey, policy: Policy) -> tuple[Owner, Owner]:
        """Who sees what this key inserts, if it is not public; and who brings it."""
        creator = self._owner(key.tenant, key.salt)
        if not policy.everything_public:
            return creator, creator
        return (self._owner("", key.salt) if key.salt else self.tree.public), creator

    def _owner(self, tenant: str, salt: str) -> Owner:
        owner = self._owners.get((tenant, salt))
        if owner is None:
            account = self._accounts.get(tenant)
            if account is None:
                account = self._accounts[tenant] = Account(tenant)
            owner = self._owners[tenant, salt] = Owner(next(self._numbers), account)
        return owner

    def _visible(self, viewer: Owner, key: PrefixKey, policy: Policy, most: int) -> Path:
        return self.tree.search(viewer, key.tokens, most, sees_public=policy.sees_public and not key.salt)

    def _public_pages(self, key: PrefixKey, policy: Policy, viewer: Owner, pages: int) -> int:
        """How many of the first pages everybody may see, as far as is known by now."""
        if key.salt:
            return 0
        if viewer is self.tree.public:
            return pages
        public = key.paging.public_pages if policy.marked_public else 0
        waiting = self._unlabelled.get(key.request_id)
        if waiting is not None and waiting.key is key:
            public = max(public, waiting.public_pages)
            waiting.complete = pages * self._page == len(key.tokens)
            self._settle(key.request_id)
        return min(public, pages)

    def _settle(self, request_id: int) -> None:
        """Forget a request that nothing more will come of."""
        waiting = self._unlabelled[request_id]
        if waiting.complete and waiting.labelled:
            del self._unlabelled[request_id]

    def _await_label(self, key: PrefixKey) -> None:
        while len(self._unlabelled) >= MOST_UNLABELLED:
            self._unlabelled.popitem(last=False)
        self._unlabelled[key.request_id] = _Unlabelled(key)

    def _publish(self, viewer: Owner, key: PrefixKey, policy: Policy, pages: int) -> None:
        """Make the first pages of a key public, as far as they are there and this owner's."""
        for node, matched in self.tree.search(viewer, key.tokens, pages, sees_public=True):
            if node.owner is self.tree.public:
                continue
            if not self.tree.may_publish(node) or self._is_barred(node):
                return
            if matched < len(node.blocks):
                self._order.push(self.tree.split(node, matched))
            self.tree.publish(node)
            self._watch(node, policy)
            self._order.push(node)

    def _watch(self, node: Node, policy: Policy) -> None:
        if self._monitor is not None and not policy.everything_public:
            node.watched = self._monitor.watch(node.creator.account.name, business=policy.marked_public)

    def _is_barred(self, node: Node) -> bool:
        return self._monitor is not None and isinstance(node.watched, float) and self._monitor.is_barred(node.watched)

    def _first_kept(self, blocks: Sequence[int], start: int) -> int:
        """Where the first block is that the tree holds elsewhere: it cannot be in two places."""
        kept = bytes(map(self._kept.__getitem__, blocks[start:])).find(1)
        return len(blocks) if kept < 0 else start + kept

    def _end_of(self, path: Path) -> Node:
        """The node that new pages follow: one that ends where the match does."""
        if not path:
            return self.tree.root
        node, matched = path[-1]
        if matched < len(node.blocks):
            self._order.push(self.tree.split(node, matched))
        return node

    def _add(self, parent: Node, owner: Owner, creator: Owner, key: PrefixKey, at: int, blocks: list[int]) -> Node:
        tokens = key.tokens[at * self._page : (at + len(blocks)) * self._page]
        self._pool.retain(blocks)
        for block in blocks:
            self._kept[block] = 1
        owner.account.pages += len(blocks)
        alike = owner is parent.owner is not self.tree.public and creator is parent.creator
        if alike and not parent.children and parent.resident == len(parent.blocks):
            self.tree.extend(parent, tokens, blocks, self._epoch)
            node = parent
        else:
            node = self.tree.add(parent, owner, creator, tokens, blocks)
        node.epoch = self._epoch
        self._order.push(node)
        return node

    def _last_page_used(self, node: Node) -> bool:
        return self._pool.references(node.blocks[node.resident - 1]) > 1

    def _shorten(self, node: Node, count: int) -> None:
        """Give up at most so many pages at the run's end, from the last on."""
        keep = node.resident
        while keep and node.resident - keep < count and self._pool.references(node.blocks[keep - 1]) == 1:
            keep -= 1
        gone = node.blocks[keep : node.resident]
        stored = self._offload(node, keep)
        node.blocks[keep : keep + len(stored)] = stored
        self._counts.evictions += len(gone)
        self._counts.offloads += len(stored)
        node.owner.account.pages -= len(gone)
        node.resident = keep
        if len(stored) < len(gone):
            node.blocks[keep + len(stored) : keep + len(gone)] = [LOST] * (len(gone) - len(stored))
            self._cut(node, keep + len(stored))
        self._give_back(gone)
        if node.parent is not None:
            self._order.push(node if keep else node.parent)

    def _offload(self, node: Node, start: int) -> list[int]:
        """Copy resident pages from `start` on to the tier below; where they are then, as far as that went."""
        stored: list[int] = []
        if self._tier is not None:
            assert self._storage is not None
            room = self._tier.room(node.resident - start)
            for page, bound in self._bounds(node, start, start + room):
                number = self._tier.store(node.owner, bound, self._storage.read(node.blocks[page]))
                if number is None:
                    break
                stored.append(~number)
        return stored

    def _cut(self, node: Node, pages: int) -> None:
        """Drop a run's pages from here on, none of them in the pool, and all that is below it."""
        for child in list((node.children or {}).values()):
            self.tree.remove(child)
            self._drop(child)
        if not pages:
            self._remove(node)
            return
        for place in node.blocks[pages:]:
            self._discard(place)
        self.tree.truncate(node, pages)

    def _discard(self, place: int) -> None:
        if place != LOST:
            assert self._tier is not None and place < 0
            self._tier.discard(~place)

    def _remove(self, node: Node) -> None:
        """Take a node and all below it out; what is left above may be an edge now, or a chain."""
        parent = node.parent
        assert parent is not None
        self.tree.remove(node)
        self._drop(node)
        if parent is not self.tree.root:
            self._order.push(self.tree.compress(parent))

    def _drop(self, removed: Node) -> None:
        for node in list(self.tree.nodes(removed)):
            node.owner.account.pages -= node.resident
            self._give_back(node.blocks[: node.resident])
            for place in node.blocks[node.resident :]:
                self._discard(place)
            node.parent, node.children, node.resident = None, None, 0
            node.run, node.blocks = b"", []

    def _give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self._kept[block] = 0
        self._pool.release(blocks)
