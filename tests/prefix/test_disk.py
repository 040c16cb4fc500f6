from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from typing import BinaryIO

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cloister.engine.blocks import BlockPool
from cloister.prefix.base import PrefixKey
from cloister.prefix.disk import TAG_BYTES, DiskTier
from cloister.prefix.node import Account, Owner
from cloister.prefix.radix import RadixCache
from tests.prefix.keys import KEYS, PAGE_TOKENS, SIZE, key_of, pages
from tests.prefix.naive import PUBLIC, NaiveCache, Page

BLOCK = 32


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


class TieredMachine(RuleBasedStateMachine):
    """A small pool over a smaller disk. What is lost is lost from the end; what comes back is what went."""

    @initialize(slots=st.sampled_from((0, 3, 30)))
    def begin(self, slots: int) -> None:
        self.file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self.cells = Cells(14)
        self.pool = BlockPool(14, self.cells.wipe)
        self.tier = DiskTier(self.file.fileno(), slots * (BLOCK + TAG_BYTES), self.cells, b"model")
        self.cache = RadixCache(self.tier)
        self.cache.attach(self.pool, PAGE_TOKENS)
        self.naive = NaiveCache(SIZE)
        self.held: list[list[int]] = []
        self.requests = 0

    @rule(key=KEYS, stays=st.booleans())
    def serve(self, key: PrefixKey, stays: bool) -> None:
        key = replace(key, request_id=self.requests + key.request_id)
        self.requests += 1
        length = len(key.tokens) // SIZE
        expected = self.naive.lookup(key, length - 1)
        resident = sum(page.block >= 0 for page in expected)
        spare = self.pool.free + sum(
            self.pool.references(page.block) == 1
            for page in self.naive.root.below()
            if page.block >= 0 and page not in expected
        )
        found = self.cache.lookup(key, length - 1)
        assert self.cells.hold(key, found.blocks), "another's keys and values, or none"
        assert resident <= len(found.blocks) <= len(expected)
        assert len(found.blocks) == len(expected) or spare < len(expected) - resident
        assert found.public == sum(page.owner == PUBLIC for page in expected[: len(found.blocks)])
        self.losses()
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
        if public := [node for node in self.cache.tree.nodes() if node.owner is self.cache.tree.public]:
            node = public[which % len(public)]
            self.naive.demote(next(page for page in self.naive.root.below() if page.block == node.blocks[0]))
            self.cache.demote(node)

    @rule(tenant=st.sampled_from("abc"))
    def forget(self, tenant: str) -> None:
        self.cache.forget(tenant)
        self.naive.forget(tenant)

    @rule(count=st.integers(1, 14))
    def evict(self, count: int) -> None:
        in_pool = [page.block for page in self.naive.root.below() if page.block >= 0]
        possible = sum(self.pool.references(block) == 1 for block in in_pool)
        free, slots = self.pool.free, len(self.tier._free)
        self.cache.evict(count)
        assert self.pool.free - free == min(count, possible)
        assert not self.losses() or slots < min(count, possible)

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
        names = {owner: name for name, owner in self.cache._owners.items()} | {self.cache.tree.public: PUBLIC}
        found: dict[tuple[tuple[bytes, object], ...], int] = {}
        waiting = [(child, ()) for child in (self.cache.tree.root.children or {}).values()]
        while waiting:
            node, path = waiting.pop()
            for at, block in enumerate(node.blocks):
                path = (*path, (node.tokens[at * SIZE : (at + 1) * SIZE], names[node.owner]))
                found[path] = block
            waiting += [(child, path) for child in (node.children or {}).values()]
        return found

    @invariant()
    def all_is_accounted_for(self) -> None:
        if not hasattr(self, "cache"):
            return
        assert not self.losses()
        places = list(self.places().values())
        assert len(places) == len(list(self.naive.root.below()))
        slots = [~place for place in places if place < 0]
        assert sorted(slots) == sorted(self.tier._stored) and not set(slots) & set(self.tier._free)
        held = [block for blocks in self.held for block in blocks]
        for block in range(self.pool.total):
            assert self.pool.references(block) == held.count(block) + places.count(block)
        for node in self.cache.tree.nodes():
            assert all((block >= 0) == (page < node.resident) for page, block in enumerate(node.blocks))
            if node.parent is not self.cache.tree.root and node.resident:
                assert node.parent.resident == len(node.parent.blocks), "a page in the pool after one that is not"
            assert not (node.resident and node.is_edge) or node.queued is node.owner.account

    def teardown(self) -> None:
        if hasattr(self, "file"):
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

    def __init__(self, file: BinaryIO, slots: int = 16) -> None:
        self.cells = Cells(8)
        self.pool = BlockPool(8, self.cells.wipe)
        self.tier = DiskTier(file.fileno(), slots * (BLOCK + TAG_BYTES), self.cells, b"model")
        self.cache = RadixCache(self.tier)
        self.cache.attach(self.pool, PAGE_TOKENS)

    def keep(self, key: PrefixKey) -> None:
        length = len(key.tokens) // SIZE
        blocks = self.pool.allocate(length)
        assert blocks is not None
        self.cells.compute(key, blocks)
        self.cache.insert(key, blocks)
        self.pool.release(blocks)

    def finds(self, key: PrefixKey) -> int:
        found = self.cache.lookup(key, len(key.tokens) // SIZE)
        assert self.cells.hold(key, found.blocks)
        self.pool.release(found.blocks)
        return len(found.blocks)


def test_what_went_to_the_disk_comes_back_to_its_tenant_alone(file: BinaryIO) -> None:
    node, key = Node(file), key_of(pages(1, 2, 3), "a")
    node.keep(key)
    node.cache.evict(8)
    assert node.pool.free == 8 and all(data == bytes(BLOCK) for data in node.cells.data), "the pool's copy is wiped"
    assert node.finds(key_of(pages(1, 2, 3), "b")) == 0 and node.pool.free == 8
    assert node.finds(key) == 3


def test_the_disk_holds_noise_and_every_tenant_has_its_own_key(file: BinaryIO) -> None:
    node = Node(file)
    for tenant in "ab":
        node.keep(key_of(pages(1), tenant))
    node.cache.evict(8)
    os.lseek(file.fileno(), 0, os.SEEK_SET)
    written = os.read(file.fileno(), 1 << 16)
    one, other = written[: BLOCK + TAG_BYTES], written[BLOCK + TAG_BYTES : 2 * (BLOCK + TAG_BYTES)]
    assert one != other and sha256(pages(1)).digest() not in written
    stored = list(node.tier._stored.values())
    assert stored[0].cipher is not stored[1].cipher and stored[0].nonce != stored[1].nonce


@pytest.mark.parametrize("harm", ["changed", "missing", "another's", "unreadable"])
def test_a_block_that_was_harmed_is_a_miss(file: BinaryIO, harm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    node, key = Node(file), key_of(pages(1, 2, 3), "a")
    node.keep(key)
    node.keep(key_of(pages(7, 8, 9), "b"))
    node.cache.evict(8)
    places = {node.tier._stored[slot].tag: slot for slot in node.tier._stored}
    assert len(places) == 2
    slots = [~place for each in node.cache.tree.nodes() if each.tokens[:SIZE] == pages(1) for place in each.blocks]
    size = BLOCK + TAG_BYTES
    match harm:
        case "changed":
            os.pwrite(file.fileno(), b"x", slots[1] * size + 5)
        case "missing":
            os.ftruncate(file.fileno(), 0)
        case "another's":
            other = next(slot for slot in node.tier._stored if slot not in slots)
            os.pwrite(file.fileno(), os.pread(file.fileno(), size, other * size), slots[1] * size)
        case "unreadable":
            monkeypatch.setattr(os, "read", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "")))
    assert node.finds(key) == (1 if harm in ("changed", "another's") else 0)
    monkeypatch.undo()
    node.keep(key)
    assert node.finds(key) == 3, "computed again, it is there again"


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
    node.cache.evict(8)
    monkeypatch.undo()
    assert node.pool.free == 8 and node.finds(key) == (fault == "no slot")


def test_a_tenant_that_is_forgotten_has_no_key_and_no_slot(file: BinaryIO) -> None:
    node = Node(file)
    node.keep(key_of(pages(1, 2), "a"))
    node.cache.evict(8)
    node.cache.forget("a")
    assert not node.tier._stored and len(node.tier._free) == 16
    assert "a" not in node.cache._accounts, "its account went, and the key with it"


def test_a_block_is_bound_to_model_tokens_and_tenant(file: BinaryIO) -> None:
    cells = Cells(2)
    owner = Owner(1, Account("a"))
    tier = DiskTier(file.fileno(), 4 * (BLOCK + TAG_BYTES), cells, b"model")
    assert tier.load(tier.store(owner, b"tokens", 0) or 0, b"tokens", 1)
    assert not tier.load(tier.store(owner, b"tokens", 0) or 0, b"others", 1)
    slot = tier.store(owner, b"tokens", 0) or 0
    tier._stored[slot] = replace(tier._stored[slot], tag=b"strange")
    assert not tier.load(slot, b"tokens", 1)
    slot = tier.store(owner, b"tokens", 0) or 0
    tier._model = sha256(b"another").digest()
    assert not tier.load(slot, b"tokens", 1)


def test_what_is_public_or_private_may_change_on_the_disk(file: BinaryIO) -> None:
    node, key = Node(file), key_of(pages(1, 2), "a", policy="safekv", number=1)
    assert node.finds(key) == 0
    node.keep(key)
    node.cache.evict(8)
    node.cache.label(1, 2 * PAGE_TOKENS)
    assert node.finds(key_of(pages(1, 2), "b", policy="safekv", number=2)) == 2
    node.cache.evict(8)
    [run] = node.cache.tree.nodes()
    node.cache.demote(run)
    assert node.finds(key_of(pages(1, 2), "b", policy="safekv", number=3)) == 0
    assert node.finds(key_of(pages(1, 2), "a", policy="safekv", number=4)) == 2
