from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloister.levels import PolicyName
from cloister.prefix.base import BlockPool, PrefixKey
from cloister.prefix.node import Namespace, Node
from cloister.prefix.radix import RadixCache
from tests.prefix.keys import KEYS, PAGE_TOKENS, SIZE, key_of, pages, pages_in
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

    def expect(self, key: PrefixKey, passed: int | None) -> None:
        """A request comes, and with it what a detector passed of it, if it was in time."""
        self.cache.expect(key)
        self.naive.expect(key)
        if passed is not None:
            self.label(key.request_id, passed)

    def begin_request(self, key: PrefixKey) -> list[int] | None:
        """A sequence's blocks: those lent, and its own for the rest."""
        length = len(key.tokens) // SIZE
        found = self.cache.lookup(key, length - 1)
        expected = self.naive.lookup(key, length - 1)
        assert [page.block for page in expected] == list(found.blocks)
        assert found.public == sum(page.owner == PUBLIC for page in expected) <= self.naive.span(key)
        for page in expected:
            assert page.owner in (PUBLIC, (key.tenant, key.salt), ("", key.salt))
        self.naive.claim(key, expected)
        own = self.pool.allocate(length - len(found.blocks))
        if own is None:
            self.pool.release(found.blocks)
            return None
        return [*found.blocks, *own]

    @rule(key=KEYS, stays=st.booleans(), inserted=st.integers(0, 6), passed=st.none() | st.integers(0, 7))
    def serve(self, key: PrefixKey, stays: bool, inserted: int, passed: int | None) -> None:
        key = replace(key, request_id=self.requests + key.request_id)
        self.requests += 1
        self.expect(key, passed)
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

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        self.cache.forget(tenant)
        self.naive.forget(tenant)

    @rule(count=st.integers(1, 8))
    def evict(self, count: int) -> None:
        """The naive one cannot say which go, but how many, and that none is in use or has a page below it."""
        before = Counter(page.block for page in self.naive.root.below())
        used = {block for block, runs in before.items() if self.pool.references(block) > runs}
        free = self.pool.free
        self.cache.evict(count)
        kept = {row[0] for row in self.rows()}
        gone = [page for page, row in _listed(self.naive.root) if row[0] not in kept]
        assert self.pool.free - free <= count
        if self.pool.free - free < count:
            for node in self.cache.tree.nodes():
                assert node.children or node.blocks[-1] in used, "an idle block was not given up"
        for page in gone:
            assert page.block not in used or before[page.block] > 1
            assert all(below in gone for below in page.children)
        for page in gone:
            if page.parent is not None and page in page.parent.children:
                page.leave()

    @rule(which=st.integers(0), cut=st.integers(0, 3))
    def compress(self, which: int, cut: int) -> None:
        """Compression and cuts change nothing that can be seen."""
        nodes = list(self.cache.tree.nodes())
        if nodes:
            node = nodes[which % len(nodes)]
            if 0 < cut < node.pages:
                self.cache.tree.split(node, cut)
            else:
                self.cache.tree.compress(node)
            for each in self.cache.tree.nodes():
                self.cache._blocks.order.push(each)

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "cache"):
            return
        kept = self.rows()
        assert kept == sorted(row for _, row in _listed(self.naive.root))
        assert pages_in(self.cache) == len({row[2] for row in kept})
        private: dict[str, int] = {}
        for path, _, _ in kept:
            owner = path[-1][1]
            if owner != PUBLIC:
                private[owner[0]] = private.get(owner[0], 0) + 1
        for tenant in self.cache._namespaces.tenants:
            assert tenant.pages == private.get(tenant.name, 0)
        held = [block for blocks in self.held for block in blocks]
        for block in range(self.pool.total):
            in_tree = sum(block == row[2] for row in kept)
            assert self.pool.references(block) == held.count(block) + in_tree
        for node in self.cache.tree.nodes():
            assert node.parent is not None
            if node.parent.namespace is self.cache.tree.public and node.parent != self.cache.tree.root:
                assert set(node.rights) <= set(node.parent.rights), "a right to a page is one to all before it"
            assert len(node.blocks) == len(node.tokens) // SIZE > 0
            assert node.children or node.namespace.tenant.queue._nodes.get(node.serial) is node

    def rows(self) -> list[Row]:
        names = {owner: name for name, owner in self.cache._namespaces._namespaces.items()} | {
            self.cache.tree.public: PUBLIC
        }
        return sorted(_unfolded(self.cache.tree.root, names))


Who = tuple[str, str]
Row = tuple[tuple[tuple[bytes, Who], ...], tuple[Who, ...], int]
"""A page: all up to it, each with its owner; its holders; its block."""


def _unfolded(root: Node, names: dict[Namespace, Who]) -> Iterable[Row]:
    """Every page of the tree."""
    waiting: list[tuple[Node, tuple[tuple[bytes, Who], ...]]] = [(child, ()) for child in root.children.values()]
    while waiting:
        node, path = waiting.pop()
        holders = tuple(sorted(names[holder] for holder in node.rights))
        for at, block in enumerate(node.blocks):
            path = (*path, (node.tokens[at * SIZE : (at + 1) * SIZE], names[node.namespace]))
            yield path, holders, block
        waiting += [(child, path) for child in node.children.values()]


def _listed(root: Page, above: tuple[tuple[bytes, Who], ...] = ()) -> Iterable[tuple[Page, Row]]:
    for page in root.children:
        path = (*above, (page.tokens, page.owner))
        yield page, (path, tuple(sorted(page.holders)), page.block)
        yield from _listed(page, path)


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


def keep(cache: RadixCache, pool: BlockPool, key: PrefixKey, passed: int | None = None) -> list[int]:
    """Serve a request and let it go; the blocks it had. A detector has `passed` so many pages before."""
    length = len(key.tokens) // SIZE
    _expect(cache, key, passed)
    found = list(cache.lookup(key, length).blocks)
    blocks = found + (pool.allocate(length - len(found)) or [])
    cache.insert(key, blocks)
    pool.release(blocks)
    return blocks


def finds(cache: RadixCache, pool: BlockPool, key: PrefixKey, passed: int | None = None) -> int:
    _expect(cache, key, passed)
    found = cache.lookup(key, len(key.tokens) // SIZE)
    pool.release(found.blocks)
    return len(found.blocks)


def _expect(cache: RadixCache, key: PrefixKey, passed: int | None) -> None:
    cache.expect(key)
    if passed is not None:
        cache.label(key.request_id, passed * PAGE_TOKENS)


@pytest.mark.parametrize("policy", ["partition", "counted"])
def test_another_tenant_misses_where_the_same_tenant_hits(
    cache: RadixCache, pool: BlockPool, policy: PolicyName
) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy))
    assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy=policy)) == 0
    assert finds(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy)) == 3
    assert finds(cache, pool, key_of(pages(1, 2, 4), "a", policy=policy)) == 2


def test_a_private_page_under_a_public_prefix_is_its_namespaces_alone(cache: RadixCache, pool: BlockPool) -> None:
    for tenant in "ab":
        keep(cache, pool, key_of(pages(1, 2, 3), tenant, policy="counted"), passed=2)
    assert pages_in(cache) == 2 + 1 + 1, "each has its own third page"
    assert finds(cache, pool, key_of(pages(1, 2, 3), "c", policy="counted"), passed=3) == 2
    assert finds(cache, pool, key_of(pages(1, 2, 3), "c", policy="partition")) == 0, "partition finds nothing public"


@pytest.mark.parametrize("policy", ["partition", "counted"])
def test_a_mark_shows_nothing_to_other_tenants(cache: RadixCache, pool: BlockPool, policy: PolicyName) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy, marked=2))
    for other in ("partition", "counted"):
        key = key_of(pages(1, 2, 3), "b", policy=other, marked=2)  # type: ignore[arg-type]
        assert finds(cache, pool, key, passed=3) == 0
        cache.forget("b")
    assert finds(cache, pool, key_of(pages(1, 2, 3), "a", policy=policy, marked=2)) == 3, "it is the tenant's own"


@pytest.mark.parametrize("passed", [None, 0, 1, 2, 3])
def test_a_request_finds_what_others_published_inside_its_own_public_span_only(
    cache: RadixCache, pool: BlockPool, passed: int | None
) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed=3)
    before = [node.epoch for node in cache.tree.nodes()]
    cache._lookups += 100  # three epochs
    span = passed or 0
    assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed) == span
    after = {node.tokens: node.epoch for node in cache.tree.nodes()}
    assert after.get(pages(1, 2, 3)[span * SIZE :], before[0]) == before[0], "nor is the rest used"
    assert finds(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed) == span, "nor does who brought it"


def test_what_is_private_in_a_prompt_is_kept_beside_what_is_public_in_anothers(
    cache: RadixCache, pool: BlockPool
) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed=3)
    mine = keep(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed=1)
    assert pages_in(cache) == 5
    found = cache.lookup(key_of(pages(1, 2, 3), "b", policy="partition"), 3)
    assert found.blocks == (), "what follows a public page is reached through it"
    assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed=1) == 3
    cache.forget("a")
    assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed=1) == 3
    assert all(pool.references(block) == 1 for block in mine)


def test_a_salt_only_narrows(cache: RadixCache, pool: BlockPool) -> None:
    for policy in ("global", "counted"):
        keep(cache, pool, key_of(pages(1, 2), "a", policy="global"))
        keep(cache, pool, key_of(pages(7, 8), "a", "salt", policy=policy))  # type: ignore[arg-type]
        assert finds(cache, pool, key_of(pages(7, 8), "a", "salt", policy=policy)) == 2  # type: ignore[arg-type]
        for salt in ("", "other"):
            assert finds(cache, pool, key_of(pages(7, 8), "a", salt, policy=policy)) == 0  # type: ignore[arg-type]
        assert finds(cache, pool, key_of(pages(1, 2), "a", "salt", policy=policy)) == 0  # type: ignore[arg-type]
        cache.forget("a")


@pytest.mark.parametrize("late", [True, False])
def test_a_label_makes_pages_public_without_a_copy(cache: RadixCache, pool: BlockPool, late: bool) -> None:
    key = key_of(pages(1, 2, 3), "a", policy="counted", number=5)
    assert cache.lookup(key, 3).blocks == ()
    blocks = pool.allocate(3)
    if not late:
        cache.label(5, 2 * PAGE_TOKENS)
    cache.insert(key, blocks)
    if late:
        assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed=3) == 0
        cache.label(5, 2 * PAGE_TOKENS)
    others = key_of(pages(1, 2, 3), "b", policy="counted", number=7)
    _expect(cache, others, 3)
    found = cache.lookup(others, 3)
    assert list(found.blocks) == blocks[:2] and found.public == 2
    assert finds(cache, pool, key) == 3, "its creator still has the rest"


def test_nobodys_label_touches_anothers_pages(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2), "a", policy="counted", number=1))
    keep(cache, pool, key_of(pages(1, 2), "b", policy="counted", number=2))
    cache.label(2, 2 * PAGE_TOKENS)
    cache.label(99, 2 * PAGE_TOKENS)
    owners = {node.namespace.tenant.name for node in cache.tree.nodes()}
    assert owners == {"a", ""}, "b's are public now, a's are not"


def test_a_label_publishes_nothing_that_has_a_salt(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2), "a", "salt", policy="counted", number=1))
    cache.label(1, 2 * PAGE_TOKENS)
    assert finds(cache, pool, key_of(pages(1, 2), "b", policy="counted", number=2)) == 0
    assert finds(cache, pool, key_of(pages(1, 2), "a", policy="counted", number=3)) == 0


def test_a_label_takes_nothing_public_out_of_the_tree(cache: RadixCache, pool: BlockPool) -> None:
    """`b` computed what `a` published later, and more: both keep theirs, and no page is lost to the pool."""
    keep(cache, pool, key_of(pages(1, 2), "a", policy="counted", number=1))
    keep(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted", number=2))
    cache.label(1, 2 * PAGE_TOKENS)
    cache.label(2, 3 * PAGE_TOKENS)
    assert sum(len(node.blocks) for node in cache.tree.nodes()) == pages_in(cache) == 5
    cache.evict(5)
    assert pool.free == pool.total


@pytest.mark.parametrize("first", ["mallory", "alice"])
def test_each_tenants_right_to_a_page_outlives_the_one_who_brought_it(
    cache: RadixCache, pool: BlockPool, first: str
) -> None:
    opening = (1, 2)
    keep(cache, pool, key_of(pages(*opening, 9), "mallory", policy="counted"), passed=2)
    prompts = {"alice": (*opening, 3, 4, 5), "bob": (*opening, 6, 7, 8)}
    for tenant, prompt in prompts.items():
        keep(cache, pool, key_of(pages(*prompt), tenant, policy="counted"), passed=2)
    cache.forget(first)
    stay = {tenant: prompt for tenant, prompt in prompts.items() if tenant != first}
    for tenant, prompt in stay.items():
        assert finds(cache, pool, key_of(pages(*prompt), tenant, policy="counted"), passed=2) == 5
    for tenant in {"mallory", "alice", "bob"} - {"bob"}:
        cache.forget(tenant)
    assert finds(cache, pool, key_of(pages(*prompts["bob"]), "bob", policy="counted"), passed=2) == 5
    cache.forget("bob")
    assert pages_in(cache) == 0 and pool.free == pool.total, "and with the last of them it goes"


def test_a_conversation_is_one_compressed_run_until_it_branches(cache: RadixCache, pool: BlockPool) -> None:
    for turn in ((1, 2), (1, 2, 3), (1, 2, 3, 4, 5)):
        keep(cache, pool, key_of(pages(*turn)))
    [pri_root] = cache.tree.nodes()
    assert pri_root.compressed and pri_root.pages == 5
    keep(cache, pool, key_of(pages(1, 2, 3, 9)))
    head, *ends = cache.tree.nodes()
    assert len(head.blocks) == 3 and sorted(len(end.blocks) for end in ends) == [1, 2]


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


def test_among_equally_old_pages_public_ones_go_first(cache: RadixCache, pool: BlockPool) -> None:
    private = keep(cache, pool, key_of(pages(1)))
    public = keep(cache, pool, key_of(pages(2), policy="global"))
    cache.evict(1)
    assert pool.references(public[0]) == 0 and pool.references(private[0]) == 1


def test_a_block_in_use_is_not_evicted(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2)))
    used = cache.lookup(key_of(pages(1, 9)), 2).blocks
    cache.evict(64)
    assert pages_in(cache) == 1 and pool.references(used[0]) == 2


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


def test_a_second_label_changes_nothing(cache: RadixCache, pool: BlockPool) -> None:
    key = key_of(pages(1, 2, 3), "a", policy="counted", number=5)
    cache.lookup(key, 3)
    cache.label(5, PAGE_TOKENS)
    cache.insert(key, pool.allocate(3))
    for public in (2, 0, 3):
        cache.label(5, public * PAGE_TOKENS)
        assert finds(cache, pool, key_of(pages(1, 2, 3), "b", policy="counted"), passed=3) == 1


def test_counted_pages_are_found_by_others_and_usage_shows_the_tenants_own_alone(
    cache: RadixCache, pool: BlockPool
) -> None:
    """What another brought is found, yet nothing says so; the second time it is the tenant's own."""
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed=3)
    for tenant, shown in (("b", 0), ("b", 3), ("a", 3)):
        key = key_of(pages(1, 2, 3), tenant, policy="counted")
        cache.expect(key)
        cache.label(key.request_id, 3 * PAGE_TOKENS)
        for _ in range(2):  # a request that has to wait looks up again, and is shown the same
            found = cache.lookup(key, 3)
            assert (len(found.blocks), found.shown) == (3, shown)
            pool.release(found.blocks)


def test_registered_pages_are_shown_to_the_tenants_they_are_registered_for(cache: RadixCache, pool: BlockPool) -> None:
    keep(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed=3)
    key = key_of(pages(1, 2, 3), "b", policy="counted")
    cache.expect(key)
    cache.label(key.request_id, 3 * PAGE_TOKENS, 2 * PAGE_TOKENS)
    found = cache.lookup(key, 3)
    assert (len(found.blocks), found.shown) == (3, 2)


@pytest.mark.parametrize(("policy", "stays"), [("counted", False), ("registered", False), ("global", True)])
def test_the_eviction_of_counted_pages_is_blind_to_hits(
    cache: RadixCache, pool: BlockPool, policy: PolicyName, stays: bool
) -> None:
    """Of two public pages the older goes first, also when tenants use it all the time."""
    for number in (1, 2):
        keep(cache, pool, key_of(pages(number), "ab"[number - 1], policy=policy), passed=1)
        cache._lookups += 100
    for _ in range(3):
        finds(cache, pool, key_of(pages(1), "c", policy=policy), passed=1)
        cache._lookups += 100
    cache.evict(1)
    assert (finds(cache, pool, key_of(pages(1), "d", policy=policy), passed=1) == 1) is stays


def test_usage_shows_a_tenants_own_copy_whatever_others_published(cache: RadixCache, pool: BlockPool) -> None:
    """Else a fall of the number would show that the pages became public."""
    keep(cache, pool, key_of(pages(1, 2), "b", policy="counted"), passed=0)
    for published in (2, 3):
        keep(cache, pool, key_of(pages(1, 2, 3), "a", policy="counted"), passed=published)
        key = key_of(pages(1, 2, 3), "b", policy="counted")
        cache.expect(key)
        cache.label(key.request_id, 3 * PAGE_TOKENS)
        found = cache.lookup(key, 3)
        assert found.shown == 2 and len(found.blocks) == published
        pool.release(found.blocks)
