from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache.ranking import SMALLEST_STEP, gathered_rows, in_order, ranks, shuffled_rows, without_ties
from cloister.mpc.functions.ring import tracing_for_shares
from tests.mpc.cache.drawn import drawn_shuffles, few, floats

counts = st.integers(2, 20)
seeds = st.integers(0, 999)


def named(rows: object) -> list[list[int]]:
    found = np.asarray(rows)
    assert set(np.unique(found)) <= {0, 1} and (found.sum(axis=-1) == 1).all()
    return found.argmax(axis=-1).tolist()


@few
@given(groups=st.integers(1, 3), count=counts, seed=seeds, data=st.data())
def test_rows_name_the_largest_whatever_the_shuffle(groups: int, count: int, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count))
    numbers = floats(np.random.default_rng(seed), groups, count)
    (shuffle,) = drawn_shuffles(seed + 1, groups, (count,)).matrices
    best = np.argsort(-numbers, axis=-1)[:, :k].tolist()
    assert named(shuffled_rows(numbers, shuffle, k)) == best
    assert [sorted(row) for row in named(gathered_rows(numbers, k))] == [sorted(row) for row in best]


@few
@given(groups=st.integers(1, 3), count=counts, seed=seeds)
def test_pairs_compared_once_rank_as_sorting_does(groups: int, count: int, seed: int) -> None:
    numbers = floats(np.random.default_rng(seed), groups, count)
    with tracing_for_shares():
        on_shares = np.asarray(ranks(numbers))
    assert (on_shares == np.argsort(np.argsort(-numbers, axis=-1), axis=-1)).all()
    assert (np.asarray(ranks(numbers)) == on_shares).all()


@few
@given(numbers=st.lists(st.integers(-3, 3), min_size=2, max_size=20))
def test_equal_numbers_are_told_apart_and_no_order_changes(numbers: list[int]) -> None:
    steps = np.array([numbers], np.float32) * SMALLEST_STEP
    with tracing_for_shares():
        apart = np.asarray(without_ties(steps))
        found = np.asarray(ranks(apart))[0]
    assert len(np.unique(apart)) == len(numbers)
    assert np.argsort(found).tolist() == sorted(range(len(numbers)), key=lambda place: -numbers[place])


@few
@given(count=counts, seed=seeds, data=st.data())
def test_rows_come_back_in_order(count: int, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count))
    places = np.random.default_rng(seed).permutation(count)[:k]
    rows = np.eye(count, dtype=np.int32)[places][None]
    (shuffle,) = drawn_shuffles(seed, 1, (k,)).matrices
    assert named(in_order(rows, shuffle)) == [sorted(places.tolist())]
    assert named(in_order(rows, None)) == [sorted(places.tolist())]
