from dataclasses import dataclass, field

import pytest

from cloister.errors import ServiceUnavailable
from cloister.levels import LevelName as Level
from cloister_bench.load import RunReport
from cloister_bench.suite.measurement import Measured, Point, in_turn, measure_in_turn, ratio
from tests.cloister_bench.fakes import run


def sides(users: int, rounds: int = 3, isolated_rounds: int = 1) -> list[Point]:
    levels: tuple[Level, ...] = ("open", "partitioned")
    alone = Point("isolated", users, 64, 64, rounds=isolated_rounds)
    return [*(Point(level, users, 64, 64, rounds=rounds) for level in levels), alone]


@dataclass
class FakeServer:
    """Each run takes a second, and a second for each user of `isolated`."""

    now: float = 0.0
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    fails_at: int | None = None

    def measure(self, point: Point, seed: int) -> RunReport:
        if len(self.asked) == self.fails_at:
            raise ServiceUnavailable("gone")
        self.asked.append((point.level, point.users, seed))
        self.now += point.users if point.level == "isolated" else 1.0
        return run(point.users, 10.0)

    def all(self, points: list[Point], seconds: float = 1000.0) -> Measured:
        measured = Measured()
        measure_in_turn(self, points, measured, seconds=seconds, seed=7, clock=lambda: self.now)
        return measured


def test_sides_of_one_load_follow_each_other_and_take_turns_to_begin() -> None:
    points = [*sides(1), *sides(8)]
    order = [[(point.level, point.users) for group in in_turn(points, round) for point in group] for round in range(4)]
    assert order[0] == [(level, users) for users in (1, 8) for level in ("open", "partitioned", "isolated")]
    assert order[1] == [(level, users) for users in (1, 8) for level in ("partitioned", "open")]
    assert order[2] == [(level, users) for users in (1, 8) for level in ("open", "partitioned")]
    assert order[3] == []


def test_every_side_of_a_round_gets_the_same_prompts() -> None:
    server = FakeServer()
    measured = server.all(sides(2, isolated_rounds=2))
    assert [seed for _, _, seed in server.asked] == [7, 7, 7, 8, 8, 8, 9, 9]
    assert {point.level: list(runs) for point, runs in measured.rounds.items()} == {
        "open": [0, 1, 2],
        "partitioned": [0, 1, 2],
        "isolated": [0, 1],
    }


def test_rounds_that_do_not_fit_are_left_out_and_the_first_never_is() -> None:
    server = FakeServer()
    server.all([*sides(1), *sides(2)], seconds=10.5)
    # The first round takes 3 + 4 seconds. One user fits once more (as long as before, at most); two users never.
    assert [(level, users, seed) for level, users, seed in server.asked if seed > 7] == [
        ("partitioned", 1, 8),
        ("open", 1, 8),
    ]
    server = FakeServer()
    server.all([*sides(1), *sides(2)], seconds=0.0)
    assert len(server.asked) == 6


def test_what_was_measured_before_a_failure_is_kept() -> None:
    server, measured = FakeServer(fails_at=2), Measured()
    with pytest.raises(ServiceUnavailable):
        measure_in_turn(server, sides(1), measured, seconds=10.0)
    assert sorted(point.level for point in measured.rounds) == ["open", "partitioned"]


def test_ratios_compare_rounds_with_themselves() -> None:
    ours = {0: run(1, 90.0), 1: run(1, 45.0), 2: run(1, 9.0)}
    theirs = {0: run(1, 100.0), 1: run(1, 50.0), 3: run(1, 1.0)}
    assert ratio(ours, theirs) == pytest.approx(0.9)
    assert ratio(ours, {}) is None and ratio(ours, {0: run(1, 0.0)}) is None
