from __future__ import annotations

import pytest

from cloister.fairness import (
    FIRST_TOKENS,
    LEAST_SHORT_S,
    LEAST_TOKENS,
    LINGER_S,
    LONG_S,
    SHORT_STEPS,
    ActiveTenants,
    Pace,
)


def learned(one: float, each: float, most: int = 512) -> Pace:
    """After steps of a machine that takes so long for one, and for each token of it."""
    pace = Pace(most)
    for _ in range(30):
        for tokens in (1, 16, 64):
            pace.note(tokens, one + each * (tokens - 1))
    return pace


def test_a_short_step_lasts_as_long_as_a_few_that_decode_and_a_long_one_half_a_second():
    pace = learned(0.020, 0.0025)
    assert pace.short == pytest.approx(1 + (SHORT_STEPS - 1) * 0.020 / 0.0025, abs=1)
    assert pace.long == pytest.approx(1 + (LONG_S - 0.020) / 0.0025, abs=1)


@pytest.mark.parametrize(
    ("one", "each", "short", "long"),
    [
        pytest.param(0.02, 0.5, LEAST_TOKENS, LEAST_TOKENS, id="slow"),
        pytest.param(0.004, 1e-6, 512, 512, id="fast"),
    ],
)
def test_no_machine_is_so_slow_that_nothing_is_computed_nor_so_fast_that_there_is_no_limit(one, each, short, long):
    pace = learned(one, each)
    assert (pace.short, pace.long) == (short, long)
    assert Pace(2).long == 2 and learned(one, each, most=2).short == min(short, 2)


@pytest.mark.parametrize(
    ("weights", "row", "context"),
    [
        pytest.param(0.0095, 0.0145, 3e-6, id="computes slowly"),
        pytest.param(0.009, 0.0005, 1e-7, id="computes fast"),
        pytest.param(0.2, 0.01, 1e-6, id="large model"),
    ],
)
def test_at_whatever_place_of_a_long_prompt_another_waits_three_of_its_quiet_steps_at_most(weights, row, context):
    """One that decodes shares each step with so many tokens of a prompt; each costs more the longer its context is."""
    pace, quiet, position = learned(weights + row, row), weights + row, 0
    while position < 7000:
        tokens = max(pace.short - 1, 1)
        seconds = quiet + tokens * (row + context * position)
        assert seconds <= max(2.75 * quiet, LEAST_SHORT_S), "who decodes waits less than three times as long as alone"
        pace.note(1 + tokens, seconds)
        position += tokens


def test_where_others_steps_come_between_theirs_are_what_counts():
    """A piece that is slower than their step, because its context is longer, makes the next no larger."""
    pace = Pace(512, short_steps=2)
    for _ in range(30):
        pace.note_between(0.024)
        pace.note(1, 0.044)
        pace.note(4, 0.044 + 3 * 0.034)
    assert pace.short == 1


def test_before_anything_is_learned_steps_are_of_moderate_size():
    assert Pace(512).short == Pace(512).long == FIRST_TOKENS


def test_a_clock_that_stands_still_does_no_harm():
    pace = Pace(512)
    pace.note(64, 0.0)
    assert pace.short == pace.long == 512


def test_who_left_a_moment_ago_still_counts_and_not_for_ever():
    now = 100.0
    company = ActiveTenants(lambda: now)
    assert not company.several
    for _ in range(2):
        company.arrive("a")
    assert not company.several
    company.arrive("b")
    assert company.several
    company.leave("b")
    now += LINGER_S
    assert company.several
    now += 1
    assert not company.several
    company.leave("a")
    company.leave("a")
    company.arrive("a")
    assert not company.several, "one tenant that asks again and again is alone"


def test_tenants_who_never_return_are_forgotten():
    now = 0.0
    company = ActiveTenants(lambda: now)
    for number in range(1000):
        now += 1
        company.arrive(str(number))
        company.leave(str(number))
    assert len(company._left) <= LINGER_S + 1 and not company._present
