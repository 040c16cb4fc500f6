"""The service's prefix cache: a radix tree with visibility per tenant (SafeKV §VI). An unlabelled page is private. A
request touches public pages within its public span alone: else their planter could see a private prompt in
evictions."""

from collections import OrderedDict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from cloister.prefix.base import NOTHING, POLICIES, TOKEN_BYTES, BlockPool, Found, Policy, PrefixCache, PrefixKey
from cloister.prefix.node import Namespace, Namespaces, Node
from cloister.prefix.tree import Path, Tree, TreeBlocks

MAX_UNLABELLED = 4096  # beyond this number the oldest stay private


class Labels:
    """Requests that wait for a detector's label (SafeKV §V-D); a key's labels live as long as the key."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[int, PrefixKey] = OrderedDict()
        self._public: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._registered: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()
        self._own: WeakKeyDictionary[PrefixKey, int] = WeakKeyDictionary()

    def expect(self, key: PrefixKey) -> None:
        if key.request_id in self._waiting or key in self._public:
            return
        while len(self._waiting) >= MAX_UNLABELLED:
            self._waiting.popitem(last=False)
        self._waiting[key.request_id] = key

    def add(self, request_id: int, public_tokens: int, registered: int = 0) -> tuple[PrefixKey, int] | None:
        """Returns the key and how many pages are public by now; None if no request waits for it."""
        if (key := self._waiting.pop(request_id, None)) is None:
            return None
        self._public[key] = key.paging.pages(public_tokens)
        self._registered[key] = key.paging.pages(registered)
        return key, self._public[key]

    def public_pages(self, key: PrefixKey) -> int:
        return self._public.get(key, 0)

    def shown(self, key: PrefixKey, own: int) -> int:
        """Pages whose reuse its tenant may see: registered ones, and those that were its own at the first look-up."""
        return max(self._own.setdefault(key, own), self._registered.get(key, 0))

    def forget(self, tenant: str) -> None:
        for request_id in [one for one, key in self._waiting.items() if key.tenant == tenant]:
            del self._waiting[request_id]
        for known in (self._public, self._registered, self._own):
            for key in [key for key in known if key.tenant == tenant]:
                del known[key]


class RadixCache(PrefixCache):
    keeps_answers = True
    lookups_per_epoch = 32

    def __init__(self) -> None:
        self._namespaces = Namespaces()
        self._labels = Labels()
        self._lookups = self._epoch = 0

    def attach(self, pool: BlockPool, page_tokens: int) -> None:
        super().attach(pool, page_tokens)
        self._page = page_tokens * TOKEN_BYTES
        self.tree = Tree(self._page, self._namespaces.public)
        self._blocks = TreeBlocks(pool, self.tree)

    def lookup(self, key: PrefixKey, most: int) -> Found:
        policy = POLICIES[key.policy]
        if not policy.reuses:
            return NOTHING
        self._lookups += 1
        self._epoch = self._lookups // self.lookups_per_epoch
        viewer, creator = self._namespaces.of(key, policy)
        creator.tenant.last_request = viewer.tenant.last_request = self._epoch
        self.expect(key)
        path = self._visible(viewer, key, policy, most)
        shown = self._labels.shown(key, self._own_pages(path, key, viewer)) if policy.labelled_public else most
        blocks: list[int] = []
        public = 0
        for node, pages in self._claimed(path, creator):
            is_public = node.namespace is self.tree.public
            if not (is_public and policy.labelled_public):  # public pages leave in the order in which they came
                node.epoch = self._epoch
            blocks += node.blocks[:pages]
            public += pages if is_public else 0
        self.pool.retain(blocks)
        return Found(tuple(blocks), public, min(shown, len(blocks)), 0 if policy.labelled_public else public)

    def expect(self, key: PrefixKey) -> None:
        if POLICIES[key.policy].labelled_public and not key.salt:
            self._labels.expect(key)

    def resume(self, key: PrefixKey) -> Sequence[int]:
        policy = POLICIES[key.policy]
        path = self._visible(self._namespaces.of(key, policy)[0], key, policy, len(key.tokens) // self._page)
        blocks = [block for node, pages in path for block in node.blocks[:pages]]
        self.pool.retain(blocks)
        return blocks

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        policy = POLICIES[key.policy]
        if not policy.reuses:
            return
        viewer, creator = self._namespaces.of(key, policy)
        public = min(self._public_pages(key, policy), len(blocks))
        if public and viewer is not self.tree.public:
            self._publish(viewer, key, public)
        path = self._claimed(self._visible(viewer, key, policy, len(blocks)), creator)
        found = sum(pages for _, pages in path)
        end = self._blocks.first_kept(blocks, found)
        if found == end:
            return
        parent = self._blocks.split(*path[-1]) if path else self.tree.root
        shared = min(max(found, public), end) if parent.namespace is self.tree.public else found
        if found < shared:
            parent = self._add(parent, self.tree.public, creator, key, found, blocks[found:shared])
        if shared < end:
            self._add(parent, viewer, creator, key, shared, blocks[shared:end])

    def evict(self, count: int) -> None:
        self._blocks.evict(count, self._namespaces.tenants)

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        if (labelled := self._labels.add(request_id, public_tokens, registered)) is not None:
            key, pages = labelled
            self._publish(self._namespaces.of(key, POLICIES[key.policy])[0], key, pages)

    def forget(self, tenant: str) -> None:
        self._labels.forget(tenant)
        if self._namespaces.tenant(tenant) is None:  # without pages here, a call must not cost other tenants a walk
            return
        for node in list(self.tree.nodes()):
            if node.parent is None or not (mine := [one for one in node.rights if one.tenant.name == tenant]):
                continue
            if len(mine) == len(node.rights):
                self._blocks.remove(node)
                continue
            for one in mine:
                node.rights.remove(one)

    @property
    def evictions(self) -> int:
        return self._blocks.evictions

    def _visible(self, viewer: Namespace, key: PrefixKey, policy: Policy, most: int) -> Path:
        return self.tree.search(viewer, key.tokens, most, public=self._public_pages(key, policy))

    def _own_pages(self, path: Path, key: PrefixKey, viewer: Namespace) -> int:
        """Pages that the tenant has a right to (which includes all above them), or its own copy beside public ones."""
        beside = self.tree.search(viewer, key.tokens, len(key.tokens) // self._page, public=0)
        return max(sum(pages for node, pages in found if viewer in node.rights) for found in (path, beside))

    def _claimed(self, path: Path, creator: Namespace) -> Path:
        """The tenant gets a right to every node of the path, and only to the pages that match."""
        for at, (node, pages) in enumerate(path):
            if creator not in node.rights:
                node = self._blocks.split(node, pages)
                path[at] = node, pages
                node.rights.append(creator)
        return path

    def _public_pages(self, key: PrefixKey, policy: Policy) -> int:
        if key.salt:
            return 0
        return (
            len(key.tokens) // self._page
            if policy.everything_public
            else self._labels.public_pages(key.labelled_as or key)
        )

    def _publish(self, viewer: Namespace, key: PrefixKey, pages: int) -> None:
        for node, matched in self.tree.search(viewer, key.tokens, pages, public=pages):
            if node.namespace is self.tree.public:
                continue
            if not self.tree.may_publish(node):
                return
            head = self._blocks.split(node, matched)
            self.tree.publish(head)
            self._blocks.order.push(head)

    def _add(
        self, parent: Node, namespace: Namespace, creator: Namespace, key: PrefixKey, at: int, blocks: Sequence[int]
    ) -> Node:
        tokens = key.tokens[at * self._page : (at + len(blocks)) * self._page]
        return self._blocks.add(parent, namespace, creator, tokens, list(blocks), self._epoch)
