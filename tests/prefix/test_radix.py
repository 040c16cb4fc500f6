from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloister.engine.blocks import BlockPool
from cloister.levels import PolicyName
from cloister.prefix.base import PrefixKey
from cloister.prefix.node import Node
from cloister.prefix.owners import Owner
from cloister.prefix.radix import LOOKUPS_PER_EPOCH, RadixCache
from tests.prefix.keys import KEYS, PAGE_TOKENS, SIZE, key_of, pages
from tests.prefix.naive import PUBLIC, NaiveCache, Page


class Machine(RuleBasedStateMachine):
    """RadixCache and NaiveCache are told the same; whatever is in one is in the other, page by page."""

    @initialize()
    def begin(self) -> None:
        self.wiped: list[int] = []
        self.pool = BlockPool(24, self.wiped.extend)
        self.cache = RadixCache()
        self.cache.attach(self.pool, PAGE_TOKENS)
        self.naive = NaiveCache(SIZE)
        self.held: list[list[int]] = []
        self.requests = 0

    def begin_request(self, key: PrefixKey) -> list[int] | None:
        """A sequence's blocks: those lent, and its own for the rest."""
        length = len(key.tokens) // SIZE
        found = self.cache.lookup(key, length - 1)
        expected = self.naive.lookup(key, length - 1)
        assert [page.block for page in expected] == list(found.blocks)
        assert found.public == sum(page.owner == PUBLIC for page in expected)
        for page in expected:
            assert page.owner in (PUBLIC, (key.tenant, key.salt), ("", key.salt))
        own = self.pool.allocate(length - len(found.blocks))
        if own is None:
            self.pool.release(found.blocks)
            return None
        return [*found.blocks, *own]

    @rule(key=KEYS, stays=st.booleans(), inserted=st.integers(0, 6))
    def serve(self, key: PrefixKey, stays: bool, inserted: int) -> None:
        key = replace(key, request_id=self.requests + key.request_id)
        self.requests += 1
        blocks = self.begin_request(key)
        if blocks is None:
            return
        for some in (blocks[:inserted], blocks):
            self.cache.insert(key, some)
            self.naive.insert(key, some)
        if stays:
            self.held.append(blocks)
        else:
            self.pool.release(blocks)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0))
    def leave(self, which: int) -> None:
        self.pool.release(self.held.pop(which % len(self.held)))

    @rule(number=st.integers(0, 40), public=st.integers(0, 7))
    def label(self, number: int, public: int) -> None:
        self.cache.label(number, public * PAGE_TOKENS)
        self.naive.label(number, public)

    @rule(which=st.integers(0))
    def demote(self, which: int) -> None:
        public = [node for node in self.cache.tree.nodes() if node.owner is self.cache.tree.public]
        if not public:
            return
        node = public[which % len(public)]
        page = next(page for page in self.naive.root.below() if page.block == node.blocks[0])
        self.cache.demote(node)
        self.naive.demote(page)

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        self.cache.forget(tenant)
        self.naive.forget(tenant)

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        """The naive one cannot say which go, but how many, and that none is in use or has a page below it."""
        before = {page.block: page for page in self.naive.root.below()}
        possible = sum(self.pool.references(block) == 1 for block in before)
        free = self.pool.free
        self.cache.evict(count)
        gone = [page for block, page in before.items() if self.pool.references(block) == 0]
        assert self.pool.free - free == len(gone) == min(count, possible)
        for page in gone:
            assert all(below in gone for below in page.children)
        for page in gone:
            if page.parent is not None and page in page.parent.children:
                page.leave()

    @rule(which=st.integers(0), undo=st.booleans())
    def compress(self, which: int, undo: bool) -> None:
        """Compression and its undoing change nothing that can be seen."""
        nodes = list(self.cache.tree.nodes())
        if nodes:
            node = nodes[which % len(nodes)]
            if undo:
                self.cache.tree.decompress(node)
            else:
                self.cache.tree.compress(node)
            for each in self.cache.tree.nodes():
                self.cache._holding.order.push(each)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "cache"):
            return
        names = {owner: name for name, owner in self.cache._owners.items()} | {self.cache.tree.public: PUBLIC}
        kept = sorted(_unfolded(self.cache.tree.root, names))
        assert kept == sorted(_listed(self.naive.root))
        assert self.cache.pages == len(kept)
        private: dict[str, int] = {}
        for _, _, owner, _, _ in kept:
            if owner != PUBLIC:
                private[owner[0]] = private.get(owner[0], 0) + 1
        for account in self.cache._owners.accounts:
            assert account.pages == private.get(account.name, 0)
        held = [block for blocks in self.held for block in blocks]
        for block in range(self.pool.total):
            in_tree = any(block == row[4] for row in kept)
            assert self.pool.references(block) == held.count(block) + in_tree
        for node in self.cache.tree.nodes():
            assert node.resident == len(node.blocks) == len(node.tokens) // SIZE > 0
            assert node.links is None or sum(link.pages for link in node.links) == len(node.blocks)
            assert not node.is_edge or node.run in node.owner.account.heap


Row = tuple[bytes, bytes, tuple[str, str], tuple[str, str], int]


def _unfolded(root: Node, names: dict[Owner, tuple[str, str]]) -> Iterable[Row]:
    """Every page of the tree: what is before it, its tokens, owner, creator and block."""
    waiting = [(child, b"") for child in root.children]
    while waiting:
        node, before = waiting.pop()
        for at, block in enumerate(node.blocks):
            tokens = node.tokens[at * SIZE : (at + 1) * SIZE]
            yield before, tokens, names[node.owner], names[node.creator], block
            before += tokens
        waiting += [(child, before) for child in node.children]


def _listed(root: Page, before: bytes = b"") -> Iterable[Row]:
    for page in root.children:
        yield before, page.tokens, page.owner, page.creator, page.block
        yield from _listed(page, before + page.tokens)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestAgainstNaive = Machine.TestCase


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(64)


@pytest.fixture
def cache(pool: BlockPool) -> RadixCache:
    made = RadixCache()
    made.attach(pool, PAGE_TOKENS)
    return made


def keep(cache: RadixCache, pool: BlockPool, key: PrefixKey) -> list[int]:
    """Serve a request and let it go; the blocks it had."""
    length = len(key.tokens) // SIZE
    found = list(cache.lookup(key, length).blocks)
    blocks = found + (pool.allocate(length - len(found)) or [])
    cache.insert(key, blocks)
    pool.release(blocks)
    return blocks


def finds(cache: RadixCache, pool: BlockPool, key: PrefixKey) -> int:
    found = cache.lookup(key, len(key.tokens) // SIZE)
    pool.release(found.blocks)
    return len(found.blocks)


@pytest.mark.parametrize("policy", ["partition", "system-prompt", "safekv"])
def test_another_tenant_misses_where_the_same_tenant_hits(
    cache: RadixCache, pool: BlockPool, policy: PolicyName
) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy))
    assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy=policy)) == 0
    assert finds(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy)) == 3
    assert finds(cache, pool, key_of(pages(1, 2, 4), "a", policy=policy)) == 2


def test_a_private_page_under_a_public_prefix_is_its_owners_alone(cache: RadixCache, pool: BlockPool) -> None:
    for tenant in "ab":
        keep(cache, pool, key_of(pages(1, 2, 3), tenant, policy="system-prompt", marked=2))
    assert cache.pages == 2 + 1 + 1, "each has its own third page"
    assert finds(cache, pool, key_of(pages(1, 2, 3), "c", policy="system-prompt")) == 2
    assert finds(cache, pool, key_of(pages(1, 2, 3), "c", policy="partition")) == 0, "partition finds nothing public"


def test_a_salt_only_narrows(cache: RadixCache, pool: BlockPool) -> None:
    for policy in ("global", "safekv"):
        keep(cache, pool, key_of(pages(1, 2), "a", policy="global"))
        keep(cache, pool, key_of(pages(7, 8), "a", "salt", policy=policy))  # type: ignore[arg-type]
        assert finds(cache, pool, key_of(pages(7, 8), "a", "salt", policy=policy)) == 2  # type: ignore[arg-type]
        for salt in ("", "other"):
            assert finds(cache, pool, key_of(pages(7, 8), "a", salt, policy=policy)) == 0  # type: ignore[arg-type]
        assert finds(cache, pool, key_of(pages(1, 2), "a", "salt", policy=policy)) == 0  # type: ignore[arg-type]
        cache.forget("a")


@pytest.mark.parametrize("late", [True, False])
def test_a_label_makes_pages_public_without_a_copy(cache: RadixCache, pool: BlockPool, late: bool) -> None:
    key = key_of(pages(1, 2, 3), "a", policy="safekv", number=5)
    assert cache.lookup(key, 3).blocks == ()
    blocks = pool.allocate(3)
    if not late:
        cache.label(5, 2 * PAGE_TOKENS)
    cache.insert(key, blocks)
    if late:
        assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="safekv", number=6)) == 0
        cache.label(5, 2 * PAGE_TOKENS)
    found = cache.lookup(key_of(pages(1, 2, 3), "b", policy="safekv", number=7), 3)
    assert list(found.blocks) == blocks[:2] and found.public == 2
    assert finds(cache, pool, key) == 3, "its creator still has the rest"


def test_nobodys_label_touches_anothers_pages(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2), "a", policy="safekv", number=1))
    keep(cache, pool, key_of(pages(1, 2), "b", policy="safekv", number=2))
    cache.label(2, 2 * PAGE_TOKENS)
    cache.label(99, 2 * PAGE_TOKENS)
    owners = {node.owner.account.name for node in cache.tree.nodes()}
    assert owners == {"a", ""}, "b's are public now, a's are not"


def test_a_label_publishes_nothing_that_has_a_salt(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2), "a", "salt", policy="safekv", number=1))
    cache.label(1, 2 * PAGE_TOKENS)
    assert finds(cache, pool, key_of(pages(1, 2), "b", policy="safekv", number=2)) == 0
    assert finds(cache, pool, key_of(pages(1, 2), "a", policy="safekv", number=3)) == 0


def test_a_label_takes_nothing_public_out_of_the_tree(cache: RadixCache, pool: BlockPool) -> None:
    """`b` computed what `a` published later, and more: both keep theirs, and no page is lost to the pool."""
    keep(cache, pool, key_of(pages(1, 2), "a", policy="safekv", number=1))
    keep(cache, pool, key_of(pages(1, 2, 3), "b", policy="safekv", number=2))
    cache.label(1, 2 * PAGE_TOKENS)
    cache.label(2, 3 * PAGE_TOKENS)
    assert sum(len(node.blocks) for node in cache.tree.nodes()) == cache.pages == 5
    cache.evict(5)
    assert pool.free == pool.total


def test_a_demoted_page_is_its_creators_alone_and_others_keep_what_they_use(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2), "a", policy="global"))
    using = cache.lookup(key_of(pages(1, 2, 3), "b", policy="safekv"), 3)
    [node] = cache.tree.nodes()
    cache.demote(node)
    assert finds(cache, pool, key_of(pages(1, 2), "b", policy="safekv")) == 0
    assert finds(cache, pool, key_of(pages(1, 2), "a", policy="safekv")) == 2
    assert all(pool.references(block) == 2 for block in using.blocks)


def test_a_conversation_is_one_compressed_run_until_it_branches(cache: RadixCache, pool: BlockPool) -> None:
    for turn in ((1, 2), (1, 2, 3), (1, 2, 3, 4, 5)):
        keep(cache, pool, key_of(pages(*turn)))
    [pri_root] = cache.tree.nodes()
    assert pri_root.is_compressed and [link.pages for link in pri_root.links or ()] == [2, 1, 2]
    keep(cache, pool, key_of(pages(1, 2, 3, 9)))
    head, *ends = cache.tree.nodes()
    assert len(head.blocks) == 3 and sorted(len(end.blocks) for end in ends) == [1, 2]
    cache.tree.decompress(head)
    assert [len(node.blocks) for node in cache.tree.nodes()][:2] == [2, 1]


def test_eviction_begins_at_the_end_of_what_was_not_used_for_longest(cache: RadixCache, pool: BlockPool) -> None:
    old = keep(cache, pool, key_of(pages(1, 2, 3)))
    cache._lookups += 100  # three epochs
    new = keep(cache, pool, key_of(pages(1, 2, 4)))
    cache.evict(1)
    assert pool.references(old[2]) == 0 and pool.references(new[2]) == 1
    assert finds(cache, pool, key_of(pages(1, 2, 4))) == 3
    cache.evict(2)
    assert finds(cache, pool, key_of(pages(1, 2, 4))) == 1


def test_what_was_found_again_stays_longer_than_what_came_after_it(cache: RadixCache, pool: BlockPool) -> None:
    first, second = (keep(cache, pool, key_of(pages(number))) for number in (1, 2))
    cache._lookups += 100
    assert finds(cache, pool, key_of(pages(1))) == 1
    cache.evict(1)
    assert pool.references(*second) == 0 and pool.references(*first) == 1


def test_epochs_end_where_their_column_does(cache: RadixCache, pool: BlockPool) -> None:
    cache._lookups = LOOKUPS_PER_EPOCH << 33
    keep(cache, pool, key_of(pages(1)))
    assert finds(cache, pool, key_of(pages(1))) == 1
    cache.evict(1)
    assert not finds(cache, pool, key_of(pages(1)))


def test_among_equally_old_pages_public_ones_go_first(cache: RadixCache, pool: BlockPool) -> None:
    private = keep(cache, pool, key_of(pages(1)))
    public = keep(cache, pool, key_of(pages(2), policy="global"))
    cache.evict(1)
    assert pool.references(public[0]) == 0 and pool.references(private[0]) == 1


def test_a_block_in_use_is_not_evicted(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2)))
    used = cache.lookup(key_of(pages(1, 9)), 2).blocks
    cache.evict(64)
    assert cache.pages == 1 and pool.references(used[0]) == 2


@pytest.mark.parametrize("hits", [0, 40])
def test_whose_pages_go_does_not_depend_on_what_another_found(cache: RadixCache, pool: BlockPool, hits: int) -> None:
    """`b` asks as often either way; only whether it finds its own differs. What `a` loses is the same."""
    mine = keep(cache, pool, key_of(pages(1, 2), "a"))
    keep(cache, pool, key_of(pages(5, 6), "b"))
    for _ in range(40):
        finds(cache, pool, key_of(pages(5, 6) if hits else pages(8, 8), "b"))
    cache._lookups += 100
    finds(cache, pool, key_of(pages(9), "a"))  # a asks last, and finds nothing
    cache.evict(2)
    assert all(pool.references(block) == 1 for block in mine)


def test_who_holds_more_than_an_equal_share_gives_first(cache: RadixCache, pool: BlockPool) -> None:
    small = keep(cache, pool, key_of(pages(1, 2), "a"))
    for flood in range(10, 50):
        keep(cache, pool, key_of(pages(flood), "b"))
    cache.evict(15)
    assert all(pool.references(block) == 1 for block in small)


def test_a_forgotten_tenants_pages_are_wiped_at_once(pool: BlockPool) -> None:
    wiped: list[int] = []
    pool = BlockPool(8, wiped.extend)
    cache = RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    gone = keep(cache, pool, key_of(pages(1, 2), "a")) + keep(cache, pool, key_of(pages(3), "a", policy="global"))
    kept = keep(cache, pool, key_of(pages(1, 2), "b"))
    cache.forget("a")
    assert sorted(wiped) == sorted(gone) and all(pool.references(block) == 1 for block in kept)
    assert finds(cache, pool, key_of(pages(1, 2), "a")) == 0 and finds(cache, pool, key_of(pages(1, 2), "b")) == 2


def test_to_forget_who_has_nothing_here_walks_nowhere(
    cache: RadixCache, pool: BlockPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anyone may ask to be forgotten as often as it likes: others must not pay for it."""
    keep(cache, pool, key_of(pages(1, 2), "a"))
    monkeypatch.setattr(cache.tree, "nodes", None)
    cache.forget("stranger")
    with pytest.raises(TypeError):
        cache.forget("a")


def test_pages_below_another_tokens_hash_are_not_found(cache: RadixCache, pool: BlockPool) -> None:
    """By content: whatever hashes alike, a page is found by its tokens alone."""
    keep(cache, pool, key_of(pages(1, 2, 3)))
    for wrong in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert finds(cache, pool, key_of(pages(*wrong))) < 3


def test_after_a_label_that_is_not_final_another_says_more_but_never_less(cache: RadixCache, pool: BlockPool) -> None:
    key = key_of(pages(1, 2, 3), "a", policy="safekv", number=5)
    cache.lookup(key, 3)
    cache.label(5, PAGE_TOKENS, final=False)
    cache.insert(key, pool.allocate(3))
    shown = [finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="safekv", number=6))]
    for public, final in ((2, False), (0, True), (3, True)):
        cache.label(5, public * PAGE_TOKENS, final=final)
        shown.append(finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="safekv", number=6)))
    assert shown == [1, 2, 2, 2], "and after the final one nothing"
