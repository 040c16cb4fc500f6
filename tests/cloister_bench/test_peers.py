import pytest

from cloister_bench.load import Workload
from cloister_bench.peers import Point, in_turn, ratio
from tests.cloister_bench.fakes import run


def test_sides_with_equally_many_users_follow_each_other_and_take_turns_to_begin() -> None:
    sides = ("open", "partitioned", "isolated")
    order = list(in_turn([Point(side, users, Workload()) for users in (1, 8) for side in sides], 3))
    for round in range(3):
        turned = [*sides[round:], *sides[:round]]
        here = [(point.users, point.side) for at, point in order if at == round]
        assert here == [(users, side) for users in (1, 8) for side in turned]


def test_ratios_compare_rounds_with_themselves() -> None:
    ours = {0: run(90.0), 1: run(45.0), 2: run(9.0)}
    theirs = {0: run(100.0), 1: run(50.0), 3: run(1.0)}
    assert ratio(ours, theirs) == pytest.approx(0.9)
    assert ratio(ours, {}) is None
