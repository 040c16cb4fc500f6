from __future__ import annotations

from cloister.messages.generation import Progress
from cloister.mpc.client.answer import Pace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pace() -> None:
    clock = Clock()
    pace = Pace(30, None, clock)
    assert pace.layer_done(0) == Progress(1, 0, 30, None)
    clock.now += 0.1
    assert pace.layer_done(1) is None  # just told
    clock.now += 9
    assert pace.layer_done(2) == Progress(1, 2, 30, None)
    pace.pass_done(1, prompt=True)
    assert pace.seconds_per_token is None  # a prompt's pass is no measure
    pace.pass_begins()
    clock.now += 4
    pace.pass_done(1)
    assert pace.seconds_per_token == 4
    pace.pass_begins()
    clock.now += 4
    pace.pass_done(2)
    assert pace.seconds_per_token == 3
    assert pace.layer_done(1) == Progress(5, 1, 30, 3)


def test_what_answers_took_before_counts_until_this_one_is_measured() -> None:
    clock = Clock()
    pace = Pace(2, 7.0, clock)
    assert pace.seconds_per_token == 7
    pace.pass_begins()
    clock.now += 1
    pace.pass_done(1)
    assert pace.seconds_per_token == 1
