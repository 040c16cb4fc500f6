from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache.ranking import Groups, Round, groups_for
from tests.mpc.cache.drawn import few


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
