from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import BinaryIO

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloister.engine.runner import BlockPool
from cloister.prefix import disk
from cloister.prefix.base import Found, PrefixKey
from cloister.prefix.disk import TAG_BYTES, DiskTier
from cloister.prefix.host import HostTier
from cloister.prefix.node import Namespace, Tenant
from cloister.prefix.radix import RadixCache
from cloister.prefix.tier import State
from tests.prefix.keys import KEYS, PAGE_TOKENS, SIZE, key_of, pages
from tests.prefix.naive import PUBLIC, NaiveCache, Page

BLOCK = 32
AMPLE = 1000


class Cells:
    """Blocks whose content is a digest of the tokens up to their end."""

    block_bytes = BLOCK

    def __init__(self, blocks: int) -> None:
        self.data = [bytes(BLOCK)] * blocks

    def read(self, block: int) -> bytes:
        return self.data[block]

    def write(self, block: int, data: bytes) -> None:
        assert len(data) == BLOCK
        self.data[block] = data

    def wipe(self, blocks: list[int]) -> None:
        for block in blocks:
            self.data[block] = bytes(BLOCK)

    def compute(self, key: PrefixKey, blocks: list[int]) -> None:
        for page, block in enumerate(blocks, 1):
            if self.data[block] == bytes(BLOCK):
                self.data[block] = sha256(key.tokens[: page * SIZE]).digest()

    def hold(self, key: PrefixKey, blocks: tuple[int, ...]) -> bool:
        return all(self.data[b] == sha256(key.tokens[: page * SIZE]).digest() for page, b in enumerate(blocks, 1))


def found_when_all_came(cache: RadixCache, pool: BlockPool, key: PrefixKey, most: int) -> Found:
    """What is found by who waits for lower tiers."""
    found = cache.lookup(key, most)
    for _ in range(3):
        if not found.coming:
            break
        pool.release(found.blocks)
        assert cache.settle(60)
        found = cache.lookup(key, most)
    return found


class TieredMachine(RuleBasedStateMachine):
    """A small pool over smaller tiers. What is lost is lost from the end; what comes back is what went, be it late."""

    @initialize(slots=st.sampled_from((0, 3, AMPLE)), above=st.sampled_from((None, 2, AMPLE)))
    def begin(self, slots: int, above: int | None) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.cells = Cells(14)
        self.pool = BlockPool(14, self.cells.wipe)
        self.disk = DiskTier(self.file.fileno(), slots * (BLOCK + TAG_BYTES), BLOCK, b"model")
        self.host = None if above is None else HostTier(above * BLOCK, BLOCK, self.disk)
        self.ample = AMPLE in (slots, above)
        self.cache = RadixCache(self.host or self.disk, storage=self.cells)
        self.cache.attach(self.pool, PAGE_TOKENS)
        self.naive = NaiveCache(SIZE)
        self.held: list[list[int]] = []
        self.requests = 0

    @rule(key=KEYS, stays=st.booleans(), waits=st.booleans(), passed=st.none() | st.integers(0, 7))
    def serve(self, key: PrefixKey, stays: bool, waits: bool, passed: int | None) -> None:
        key = replace(key, request_id=self.requests + key.request_id)
        self.requests += 1
        length = len(key.tokens) // SIZE
        self.cache.prefetch(key, 0)
        self.naive.expect(key)
        if passed is not None:
            self.label(key.request_id, passed)
        expected = self.naive.lookup(key, length - 1)
        resident = sum(page.block >= 0 for page in expected)
        spare = self.pool.free + sum(
            self.pool.references(page.block) == 1
            for page in self.naive.root.below()
            if page.block >= 0 and page not in expected
        )
        if waits:
            found = found_when_all_came(self.cache, self.pool, key, length - 1)
        else:
            self.cache.prefetch(key, length - 1)
            found = self.cache.lookup(key, length - 1)
        assert self.cells.hold(key, found.blocks), "another's keys and values, or none"
        assert resident <= len(found.blocks) <= len(expected)
        complete = len(found.blocks) == len(expected) or spare < len(expected) - resident
        assert complete or not waits or not self.ample, "what nobody dropped came back"
        assert found.public == sum(page.owner == PUBLIC for page in expected[: len(found.blocks)])
        self.losses()
        self.naive.claim(key, self.naive.lookup(key, length - 1)[: len(found.blocks) + found.coming * length])
        own = self.pool.allocate(length - len(found.blocks))
        if own is None:
            self.pool.release(found.blocks)
            return
        blocks = [*found.blocks, *own]
        self.cells.compute(key, blocks)
        self.cache.insert(key, blocks)
        self.naive.insert(key, blocks)
        if stays:
            self.held.append(blocks)
        else:
            self.pool.release(blocks)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0))
    def leave(self, which: int) -> None:
        self.pool.release(self.held.pop(which % len(self.held)))

    @rule(number=st.integers(0, 30), public=st.integers(0, 7))
    def label(self, number: int, public: int) -> None:
        self.cache.label(number, public * PAGE_TOKENS)
        self.naive.label(number, public)

    @rule(which=st.integers(0))
    def demote(self, which: int) -> None:
        if public := [node for node in self.cache.tree.nodes() if node.namespace is self.cache.tree.public]:
            node = public[which % len(public)]
            same = (page for page in self.naive.root.below() if (page.block, page.owner) == (node.blocks[0], PUBLIC))
            self.naive.demote(next(same))
            self.cache.demote(node)
            self.losses()  # what is in a lower tier is its first holder's

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        self.cache.forget(tenant)
        self.naive.forget(tenant)

    @rule(count=st.integers(1, 14))
    def evict(self, count: int) -> None:
        in_pool = Counter(page.block for page in self.naive.root.below() if page.block >= 0)
        used = {block for block, runs in in_pool.items() if self.pool.references(block) > runs}
        free = self.pool.free
        self.cache.evict(count)
        assert self.pool.free - free <= count
        if self.pool.free - free < count:
            for node in self.cache.tree.nodes():
                assert not node.resident or not node.is_edge or node.blocks[node.resident - 1] in used
        assert not self.losses() or not self.ample

    def losses(self) -> list[Page]:
        """Learn where pages are now; those that are nowhere are gone, with all below them."""
        there = self.places()
        lost = [page for page in self.naive.root.below() if path_of(page) not in there]
        for page in lost:
            assert all(below in lost for below in page.below())
        for page in lost:
            assert page.parent is not None
            page.leave()
        for page in self.naive.root.below():
            page.block = there[path_of(page)]
        return lost

    def places(self) -> dict[tuple[tuple[bytes, object], ...], int]:
        names = {owner: name for name, owner in self.cache._namespaces._namespaces.items()} | {
            self.cache.tree.public: PUBLIC
        }
        found: dict[tuple[tuple[bytes, object], ...], int] = {}
        waiting = [(child, ()) for child in self.cache.tree.root.children.values()]
        while waiting:
            node, path = waiting.pop()
            for at, block in enumerate(node.blocks):
                path = (*path, (node.tokens[at * SIZE : (at + 1) * SIZE], names[node.namespace]))
                found[path] = block
            waiting += [(child, path) for child in node.children.values()]
        return found

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert not self.losses()
        places = list(self.places().values())
        assert len(places) == len(list(self.naive.root.below()))
        numbers = {~place for place in places if place < 0}
        kept = set(self.disk._slots)
        if self.host is not None:
            assert kept <= set(self.host._moved.values()), "a tier keeps what nobody can find"
            kept = {*self.host._slots, *self.host._moved}
        assert kept <= numbers and (kept == numbers or not self.ample)
        held = [block for blocks in self.held for block in blocks]
        for block in range(self.pool.total):
            assert self.pool.references(block) == held.count(block) + places.count(block)
        for node in self.cache.tree.nodes():
            assert all((block >= 0) == (page < node.resident) for page, block in enumerate(node.blocks))
            if node.parent != self.cache.tree.root and node.resident:
                assert node.parent.resident == len(node.parent.blocks), "a page in the pool after one that is not"
            assert not (node.resident and node.is_edge) or node.namespace.tenant.queue._nodes.get(node.serial) is node

    def teardown(self) -> None:
        if hasattr(self, "file"):
            self.disk.close()
            self.file.close()


def path_of(page: Page) -> tuple[tuple[bytes, object], ...]:
    above = () if page.parent is None or page.parent.parent is None else path_of(page.parent)
    return (*above, (page.tokens, page.owner))


TieredMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestTiered = TieredMachine.TestCase


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(buffering=0) as made:
        yield made


class Node:
    """A pool of eight blocks over a disk, and what keeps both."""

    def __init__(self, file: BinaryIO, slots: int = 16, in_flight: int = 1 << 20) -> None:
        self.cells = Cells(8)
        self.pool = BlockPool(8, self.cells.wipe)
        self.tier = DiskTier(file.fileno(), slots * (BLOCK + TAG_BYTES), BLOCK, b"model", in_flight)
        self.cache = RadixCache(self.tier, storage=self.cells)
        self.cache.attach(self.pool, PAGE_TOKENS)

    def keep(self, key: PrefixKey) -> None:
        length = len(key.tokens) // SIZE
        blocks = self.pool.allocate(length)
        assert blocks is not None
        self.cells.compute(key, blocks)
        self.cache.insert(key, blocks)
        self.pool.release(blocks)

    def evict(self) -> None:
        """All to the disk, and written there."""
        self.cache.evict(8)
        assert self.cache.settle(60)

    def finds(self, key: PrefixKey) -> int:
        found = found_when_all_came(self.cache, self.pool, key, len(key.tokens) // SIZE)
        assert self.cells.hold(key, found.blocks)
        self.pool.release(found.blocks)
        return len(found.blocks)

    def finds_now(self, key: PrefixKey) -> Found:
        found = self.cache.lookup(key, len(key.tokens) // SIZE)
        assert self.cells.hold(key, found.blocks)
        self.pool.release(found.blocks)
        return found


@pytest.fixture
def node(file: BinaryIO) -> Iterator[Node]:
    made = Node(file)
    yield made
    made.tier.close()


def test_what_went_to_the_disk_comes_back_to_its_tenant_alone(node: Node) -> None:
    key = key_of(pages(1, 2, 3), "a")
    node.keep(key)
    node.evict()
    assert node.pool.free == 8 and all(data == bytes(BLOCK) for data in node.cells.data), "the pool's copy is wiped"
    assert node.finds(key_of(pages(1, 2, 3), "b")) == 0 and node.pool.free == 8
    assert node.finds(key) == 3


def test_the_disk_holds_noise_and_every_tenant_has_its_own_key(node: Node, file: BinaryIO) -> None:
    for tenant in "ab":
        node.keep(key_of(pages(1), tenant))
    node.evict()
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    written = os.read(file.fileno(), 1 << 16)
    one, other = written[: BLOCK + TAG_BYTES], written[BLOCK + TAG_BYTES : 2 * (BLOCK + TAG_BYTES)]
    assert one != other and sha256(pages(1)).digest() not in written
    stored = [node.tier._slots.get(number)[1] for number in node.tier._slots]  # type: ignore[index]
    assert stored[0].nonce != stored[1].nonce
    sealed = [one.cipher.encrypt(bytes(12), b"the same", None) for one in stored]
    assert sealed[0] != sealed[1], "one key for both"


@pytest.mark.parametrize("harm", ["changed", "missing", "another's", "unreadable"])
def test_a_block_that_was_harmed_is_a_miss(
    node: Node, file: BinaryIO, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(pages(1, 2, 3), "a")
    node.keep(key)
    node.keep(key_of(pages(7, 8, 9), "b"))
    node.evict()
    places = {
        bytes(run.tokens[:SIZE]): [node.tier._slots.get(~number)[0] for number in run.blocks]  # type: ignore[index]
        for run in node.cache.tree.nodes()
    }
    slots, others = places[pages(1)], places[pages(7)]
    size = BLOCK + TAG_BYTES
    match harm:
        case "changed":
            os.pwrite(file.fileno(), b"x", slots[1] * size + 5)
        case "missing":
            os.ftruncate(file.fileno(), 0)
        case "another's":
            os.pwrite(file.fileno(), os.pread(file.fileno(), size, others[0] * size), slots[1] * size)
        case "unreadable":
            monkeypatch.setattr(os, "read", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
    assert node.finds(key) == (1 if harm in ("changed", "another's") else 0)
    monkeypatch.undo()
    node.keep(key)
    assert node.finds(key) == 3, "computed again, it is there again"


@pytest.mark.parametrize("step", ["_encrypted", "_write", "_read"])
def test_whatever_a_block_fails_on_is_a_miss_and_told_once_without_content(
    node: Node, step: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the thread goes on: what comes after it is written and read."""
    key = key_of(pages(1, 2, 3), "a")
    node.keep(key)
    if step == "_read":
        node.evict()

    def fails(*given: object) -> bytes:
        raise MemoryError(f"secret text {given}")

    with monkeypatch.context() as broken:
        broken.setattr(node.tier, step, fails)
        node.evict()
        assert node.finds(key) == 0
    assert not len(node.tier._slots) and not node.tier._busy, "it takes no room"
    [record] = caplog.records
    assert "MemoryError at" in record.getMessage() and "secret" not in caplog.text and not record.exc_info
    node.keep(key)
    node.evict()
    assert node.finds(key) == 3


@pytest.mark.parametrize("fault", ["full", "short", "no slot"])
def test_a_disk_without_room_loses_hits_and_nothing_else(
    file: BinaryIO, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, key = Node(file, slots=1 if fault == "no slot" else 16), key_of(pages(1, 2, 3), "a")
    node.keep(key)
    if fault == "full":
        monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "")))
    elif fault == "short":
        monkeypatch.setattr(os, "write", lambda _, data: len(data) // 2)
    node.evict()
    monkeypatch.undo()
    assert len(node.tier._slots) == (fault == "no slot"), "before anybody asks for it"
    assert node.pool.free == 8 and node.finds(key) == (fault == "no slot")
    assert node.tier._slots.free == node.tier._slots.total, "what could not be written takes no room"
    node.tier.close()


def test_a_tenant_that_is_forgotten_has_no_key_and_no_slot(node: Node) -> None:
    node.keep(key_of(pages(1, 2), "a"))
    node.evict()
    node.cache.forget("a")
    assert not len(node.tier._slots) and node.tier._slots.free == 16
    assert node.cache._namespaces.tenant("a") is None, "its account went, and the key with it"


@pytest.mark.parametrize("other", ["nothing", "tokens", "model", "tenant"])
def test_a_block_is_bound_to_model_tokens_and_tenant(node: Node, other: str) -> None:
    tier, bound = node.tier, sha256(b"tokens").digest()
    owner = Namespace(1, Tenant("a"))
    number = tier.store(owner, bound, bytes(BLOCK)) or 0
    assert tier.settle(60)
    _, stored = tier._slots.get(number)  # type: ignore[misc]
    assert stored.bound == sha256(b"model").digest() + owner.tag + bound
    if other in ("model", "tenant"):
        changed = bytearray(stored.bound)
        changed[0 if other == "model" else len(sha256().digest())] ^= 1
        stored.bound = bytes(changed)
    tier.fetch(number, sha256(b"others").digest() if other == "tokens" else bound)
    assert tier.settle(60)
    assert tier.fetch(number, bound) is (State.HERE if other == "nothing" else State.LOST)


def test_what_is_found_before_it_was_written_is_here_when_what_is_before_it_came(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits once finds a whole prompt, however far the disk was with writing it when the prompt came."""
    key, write = key_of(pages(1, 2, 3), "a"), node.tier._write
    one_is_written, goes_on = threading.Event(), threading.Event()

    def slowly(place: int, data: bytes) -> bool:
        if one_is_written.is_set():
            goes_on.wait(60)
        one_is_written.set()
        return write(place, data)

    monkeypatch.setattr(node.tier, "_write", slowly)
    node.keep(key)
    node.cache.evict(8)
    assert one_is_written.wait(60)
    assert node.finds_now(key).coming
    goes_on.set()
    assert node.cache.settle(60)
    found = node.finds_now(key)
    assert len(found.blocks) == 3 and not found.coming


def test_what_is_public_or_private_may_change_on_the_disk(node: Node) -> None:
    key = key_of(pages(1, 2), "a", policy="safekv", number=1)
    assert node.finds(key) == 0
    node.keep(key)
    node.evict()
    node.cache.label(1, 2 * PAGE_TOKENS)
    others = key_of(pages(1, 2), "b", policy="safekv", number=2)
    node.cache.prefetch(others, 2)
    node.cache.label(2, 2 * PAGE_TOKENS)
    assert node.finds(others) == 2
    node.evict()
    [run] = node.cache.tree.nodes()
    node.cache.demote(run)
    assert node.finds(key_of(pages(1, 2), "b", policy="safekv", number=3)) == 0, "one copy is its first holder's"
    assert node.finds(key_of(pages(1, 2), "a", policy="safekv", number=4)) == 2


def test_a_public_block_has_a_key_of_its_own_which_goes_with_it(node: Node) -> None:
    """So the last tenant with a right to it leaves noise, although others have public blocks still."""
    node.keep(key_of(pages(1, 2), "a", policy="global"))
    node.keep(key_of(pages(3), "b", policy="global"))
    node.evict()
    stored = [node.tier._slots.get(number)[1] for number in node.tier._slots]  # type: ignore[index]
    assert len({one.cipher.encrypt(bytes(12), b"the same", None) for one in stored}) == 3
    node.cache.forget("a")
    assert len(node.tier._slots) == 1 and node.cache._namespaces.public.tenant.cipher is None
    assert node.finds(key_of(pages(3), "b", policy="global")) == 1


def test_holders_of_a_demoted_run_have_copies_under_keys_of_their_own(node: Node) -> None:
    """What was in the pool is each holder's; on the disk too, so one that is forgotten takes nothing from the other."""
    for tenant in "ab":
        node.keep(key_of(pages(1, 2), tenant, policy="global"))
    [run] = node.cache.tree.nodes()
    node.cache.demote(run)
    node.evict()
    stored = [node.tier._slots.get(number)[1] for number in node.tier._slots]  # type: ignore[index]
    assert len(stored) == 4 and len({id(each.cipher) for each in stored}) == 2
    node.cache.forget("a")
    assert len(node.tier._slots) == 2 and node.cache._namespaces.tenant("a") is None
    assert node.finds(key_of(pages(1, 2), "b")) == 2


class Held:
    """An os.write or os.read that waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        real = getattr(os, name)

        def held(*given: object) -> object:
            self.begun.set()
            assert self.go.wait(60)
            return real(*given)

        monkeypatch.setattr(os, name, held)


@pytest.mark.parametrize("slow", ["write", "read"])
def test_a_disk_that_hangs_holds_nobody_up_and_what_is_late_is_a_miss(
    node: Node, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(pages(1, 2, 3), "a")
    node.keep(key)
    if slow == "read":
        node.evict()
    held = Held(monkeypatch, slow)
    node.cache.evict(8)
    node.cache.prefetch(key, 3)
    assert held.begun.wait(60) and node.pool.free == 8
    first = node.finds_now(key)
    assert first.coming and len(first.blocks) == 0
    other = key_of(pages(5), "b")
    node.keep(other)
    assert len(node.finds_now(other).blocks) == 1
    held.go.set()
    assert node.finds(key) == 3, "late, not lost"


def test_what_is_not_written_yet_comes_back_without_the_disk(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, "write")
    node.keep(key_of(pages(9), "b"))
    node.cache.evict(8)
    assert held.begun.wait(60)
    key = key_of(pages(1, 2, 3), "a")
    node.keep(key)
    node.cache.evict(8)
    assert len(node.finds_now(key).blocks) == 3
    held.go.set()


def test_blocks_on_their_way_are_bounded_and_the_rest_is_lost(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, "write")
    node = Node(file, in_flight=3 * (BLOCK + TAG_BYTES))
    node.keep(key_of(pages(1, 2, 3, 4, 5), "a"))
    node.cache.evict(8)
    assert len(node.tier._busy) == 3 and node.pool.free == 8
    held.go.set()
    assert node.finds(key_of(pages(1, 2, 3, 4, 5), "a")) == 3
    node.tier.close()


def test_while_too_much_is_on_its_way_there_is_no_room_and_nothing_old_goes_for_it(
    file: BinaryIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DiskTier(file.fileno(), 5 * (BLOCK + TAG_BYTES), BLOCK, b"model", 3 * (BLOCK + TAG_BYTES))
    owner, bound = Namespace(1, Tenant("a")), sha256(b"tokens").digest()
    old = [tier.store(owner, bound, bytes(BLOCK)) for _ in range(2)]
    assert tier.settle(60)
    held = Held(monkeypatch, "write")
    assert tier.room(9) == 3
    assert None not in [tier.store(owner, bound, bytes(BLOCK)) for _ in range(3)]
    assert tier.room(9) == 0 and set(old) < set(tier._slots)
    tier.discard(old[0] or 0)
    assert tier.store(owner, bound, bytes(BLOCK)) is None and len(tier._busy) == 3
    held.go.set()
    assert tier.settle(60) and tier.room(9) == 3
    tier.close()


def test_what_was_brought_for_nobody_makes_way(file: BinaryIO, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(file, in_flight=3 * (BLOCK + TAG_BYTES))
    first, second = key_of(pages(1, 2, 3), "a"), key_of(pages(4, 5, 6), "b")
    for key in (first, second):
        node.keep(key)
        node.evict()
    node.cache.prefetch(first, 3)
    assert node.cache.settle(60)
    assert node.finds_now(second).coming and not node.tier._queue, "no room"
    monkeypatch.setattr(disk, "ABANDONED_S", 0.0)
    assert node.finds(second) == 3
    assert node.finds(first) == 3, "it is on the disk still"
    node.tier.close()


def test_a_forgotten_tenants_blocks_on_their_way_are_forgotten(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, "write")
    node.keep(key_of(pages(1, 2, 3), "a"))
    node.cache.evict(8)
    assert held.begun.wait(60)
    records = list(node.tier._busy)
    node.cache.forget("a")
    assert all(record.data is None for record in records), "also of what the thread has in its hands"
    assert not node.tier._busy and not node.tier._queue and node.cache._namespaces.tenant("a") is None
    held.go.set()
    assert node.finds(key_of(pages(1, 2, 3), "a")) == 0


def test_who_fills_the_disk_gives_first_and_the_old_goes_for_the_new(file: BinaryIO) -> None:
    node = Node(file, slots=4)
    small = key_of(pages(1), "a")
    node.keep(small)
    node.evict()
    floods = [key_of(pages(flood, flood), "b") for flood in range(5, 9)]
    for flood in floods:
        node.keep(flood)
        node.evict()
    assert node.finds(small) == 1, "it held less than the one that floods"
    assert node.finds(floods[-1]) == 2 and node.finds(floods[0]) == 0
    node.tier.close()
