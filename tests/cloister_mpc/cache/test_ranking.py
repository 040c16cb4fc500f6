from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister_mpc.cache.ranking import (
    SMALLEST_STEP,
    Groups,
    Round,
    _larger,
    _ranked,
    groups_for,
    in_order,
    shuffled_rows,
    without_ties,
)
from cloister_mpc.functions.ring import tracing_for_shares
from tests.cloister_mpc.cache.drawn import at_once, drawn_shuffles, few, floats


def lost(numbers: np.ndarray, meetings: Round) -> np.ndarray:
    pairs, start = meetings.losses
    return (numbers @ meetings.differences > 0).astype(np.int32) @ pairs + start


@few
@given(numbers=st.integers(2, 40), seed=st.integers(0, 999), data=st.data())
def test_two_rounds_rank_the_wanted_as_sorting_does(numbers: int, seed: int, data: st.DataObject) -> None:
    wanted = data.draw(st.integers(1, numbers))
    groups = Groups(numbers, data.draw(st.integers(2, max(2, numbers // 2))), wanted)
    order = np.random.default_rng(seed).permutation(numbers)
    places = lost(order, groups.first)
    candidates = [
        int(np.flatnonzero((places == place) & (groups.own == group))[0]) for group, place in groups.candidates
    ]
    ranked = lost(order[candidates], groups.second) + [place for _, place in groups.candidates]
    found = [candidates[int(np.flatnonzero(ranked == rank)[0])] for rank in range(wanted)]
    assert found == np.argsort(-order)[:wanted].tolist()
    assert (ranked >= wanted).sum() == len(candidates) - wanted, "no other takes a place among the wanted"


@pytest.mark.parametrize(("numbers", "wanted", "meetings"), [(64, 6, 588), (61, 6, 552), (128, 13, 2_500)])
def test_two_rounds_are_far_fewer_meetings_than_one(numbers: int, wanted: int, meetings: int) -> None:
    groups = groups_for(numbers, wanted)
    assert groups is not None
    assert len(groups.first.pairs) + len(groups.second.pairs) <= meetings


@pytest.mark.parametrize(("numbers", "wanted"), [(2, 1), (16, 4), (64, 40), (248, 133)])
def test_one_round_where_two_save_little(numbers: int, wanted: int) -> None:
    assert groups_for(numbers, wanted) is None


def ranks(numbers: Any) -> Any:
    return _ranked(_larger(numbers), numbers.shape[-1])


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
    (shuffle,) = drawn_shuffles(seed + 1, groups, (count,))
    best = np.argsort(-numbers, axis=-1)[:, :k].tolist()
    assert named(at_once(lambda *given: shuffled_rows(*given, k), numbers, shuffle)) == best


@few
@given(groups=st.integers(1, 3), count=counts, seed=seeds)
def test_pairs_compared_once_rank_as_sorting_does(groups: int, count: int, seed: int) -> None:
    numbers = floats(np.random.default_rng(seed), groups, count)
    with tracing_for_shares():
        on_shares = np.asarray(at_once(ranks, numbers))
    assert (on_shares == np.argsort(np.argsort(-numbers, axis=-1), axis=-1)).all()


@few
@given(numbers=st.lists(st.integers(-3, 3), min_size=2, max_size=20))
def test_equal_numbers_are_told_apart_and_no_order_changes(numbers: list[int]) -> None:
    steps = np.array([numbers], np.float32) * SMALLEST_STEP
    with tracing_for_shares():
        apart = np.asarray(at_once(without_ties, steps))
        found = np.asarray(at_once(ranks, apart))[0]
    assert len(np.unique(apart)) == len(numbers)
    assert np.argsort(found).tolist() == sorted(range(len(numbers)), key=lambda place: -numbers[place])


@few
@given(count=counts, seed=seeds, data=st.data())
def test_rows_come_back_in_order(count: int, seed: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, count))
    places = np.random.default_rng(seed).permutation(count)[:k]
    rows = np.eye(count, dtype=np.int32)[places][None]
    (shuffle,) = drawn_shuffles(seed, 1, (k,))
    assert named(at_once(in_order, rows, shuffle)) == [sorted(places.tolist())]
