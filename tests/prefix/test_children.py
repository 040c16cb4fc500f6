from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloister.engine.blocks import BlockPool
from cloister.prefix import children
from cloister.prefix.children import Children
from cloister.prefix.owners import Account, Owner
from cloister.prefix.radix import RadixCache
from cloister.prefix.runs import NONE, Runs, content_of
from tests.prefix.keys import PAGE_TOKENS, SIZE, key_of, pages

KEYS = st.tuples(st.integers(0, 3), st.sampled_from((0, 1)), st.integers(0, 30))
"""A parent, an owner, and what the first page holds."""


@pytest.mark.parametrize("spread", ["hashed", "few homes", "one home"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(steps=st.lists(KEYS, max_size=120))
def test_every_run_is_found_by_its_own_key_alone(
    monkeypatch: pytest.MonkeyPatch, spread: str, steps: list[tuple[int, int, int]]
) -> None:
    """As by a dict, however many begin their search at the same slot, and while the table grows."""
    if spread != "hashed":
        homes = {"few homes": (62, 63), "one home": (63,)}[spread]  # at the end: searches go round
        monkeypatch.setattr(children, "hash", lambda key: homes[key[2][0] % len(homes)], raising=False)
    runs = Runs(SIZE)
    owners = [Owner(number, Account("")) for number in range(2)]
    parents = [runs.new(NONE, owners[0], b"") for _ in range(4)]
    table, expected = Children(runs), dict[tuple[int, int, int], int]()
    for key in steps:
        parent, owner, page = key
        if (run := expected.pop(key, None)) is not None:
            table.remove(run)
            runs.free(run)
        else:
            run = runs.new(parents[parent], owners[owner], content_of(pages(page), [0]))
            table.add(run)
            expected[key] = run
    for parent in range(4):
        for owner in range(2):
            for page in range(31):
                found = table.find(parents[parent], owners[owner].seat, pages(page))
                assert found == expected.get((parent, owner, page), NONE)


def test_pages_whose_hashes_are_the_same_are_not_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "hash", lambda _: 7, raising=False)
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
