from __future__ import annotations

import gc
import weakref

import pytest

from cloister.prefix.base import BlockPool
from cloister.prefix.node import Namespaces
from cloister.prefix.radix import RadixCache
from cloister.prefix.tree import Tree
from tests.prefix.keys import PAGE_TOKENS, SIZE, key_of, pages, pages_in


def test_every_node_is_found_by_its_own_namespace_and_first_page_alone() -> None:
    pool, cache = BlockPool(64), RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    for tenant in "ab":
        for first in range(5):
            cache.insert(key_of(pages(first, 9), tenant), pool.allocate(2) or [])
    assert len({cache.lookup(key_of(pages(first, 9), tenant), 2).blocks for tenant in "ab" for first in range(5)}) == 10
    assert not cache.lookup(key_of(pages(6, 9)), 2).blocks and not cache.lookup(key_of(pages(1, 9), "c"), 2).blocks


def test_part_of_a_page_finds_nothing() -> None:
    pool, cache = BlockPool(8), RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    cache.insert(key_of(pages(1, 2)), pool.allocate(2) or [])
    whole, cut = key_of(pages(1, 2)), key_of(pages(1, 2)[: SIZE + 4])
    assert len(cache.lookup(whole, 2).blocks) == 2 and len(cache.lookup(cut, 2).blocks) == 1


@pytest.fixture
def no_collector():
    """Only reference counts free objects."""
    gc.disable()
    yield
    gc.enable()


def test_a_removed_node_keeps_neither_tokens_nor_neighbours(no_collector: None) -> None:
    spaces = Namespaces()
    tree, owner = Tree(SIZE, spaces.public), spaces.get("a", "")
    parent = tree.add(tree.root, owner, owner, pages(1), [0])
    child = tree.add(parent, owner, owner, pages(2, 3), [1, 2])
    owner.tenant.queue.push(child, 0)
    tree.remove(child)
    assert child.parent is None and not child.tokens and not child.blocks
    assert not owner.tenant.queue and not parent.children


def test_with_a_tenants_last_node_its_record_and_key_go_at_once(no_collector: None) -> None:
    pool, cache = BlockPool(8), RadixCache()
    cache.attach(pool, PAGE_TOKENS)
    for tenant in "ab":  # the first page becomes both tenants', the second is each tenant's own
        key = key_of(pages(1, 2), tenant, policy="counted")
        cache.expect(key)
        cache.label(key.request_id, PAGE_TOKENS)
        found = cache.lookup(key, 2).blocks
        cache.insert(key, blocks := [*found, *(pool.allocate(2 - len(found)) or [])])
        pool.release(blocks)
    del key
    record = cache._namespaces.tenant("a")
    assert record is not None
    kept = weakref.ref(record)
    del record
    cache.forget("a")
    assert kept() is None and cache._namespaces.tenant("b") is not None and pages_in(cache) == 2
