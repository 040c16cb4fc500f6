from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.engine.drafts import propose
from cloister.messages.generation import Progress
from cloister.messages.types import SamplingParams
from cloister_mpc.client.answer import Drafts, FromLogits, OnShares, Pace, chooser_for, gumbel

V = 8
LOGITS = np.array([0.0, 2.0, 1.0, -1.0, 0.5, 0.0, -3.0, 1.5], dtype=np.float32)


def on_shares(params: SamplingParams) -> int:
    """What parties would choose, in the clear."""
    chooser = chooser_for((1,), params, V)
    noise = chooser.noise(())
    chosen = np.argmax(LOGITS if noise is None else LOGITS + noise[:, 0])
    return chooser.choose(np.array([chosen]), 0)[0]


def test_greedy_needs_no_noise() -> None:
    assert on_shares(SamplingParams(temperature=0)) == 1
    assert chooser_for((1,), SamplingParams(temperature=0), V).kind == "token"


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_noise_draws_by_probability(temperature: float) -> None:
    draws = [on_shares(SamplingParams(temperature=temperature, seed=seed)) for seed in range(4000)]
    weights = np.exp(LOGITS / temperature)
    wanted = weights / weights.sum()
    found = np.bincount(draws, minlength=V) / len(draws)
    assert np.abs(found - wanted).max() < 0.03


def test_the_draw_depends_on_seed_and_index_alone() -> None:
    assert (gumbel(3, 5, 100) == gumbel(3, 5, 100)).all()
    assert (gumbel(3, 5, 100) != gumbel(3, 6, 100)).any() and (gumbel(3, 5, 100) != gumbel(4, 5, 100)).any()
    assert np.isfinite(gumbel(2**63 - 1, 2**40, 200_000)).all()


def test_bias_and_penalties_are_dealt_as_noise_and_are_those_of_the_engine() -> None:
    params = SamplingParams(
        temperature=0, max_tokens=9, logit_bias={6: 5.0}, presence_penalty=0.75, frequency_penalty=0.5
    )
    shares, logits = OnShares(params, V), FromLogits((1,), params, V)
    for _ in range(6):
        noise = shares.noise(())
        assert noise is not None and shares.kind == "sampled"
        chosen, _ = shares.choose(np.array([np.argmax(LOGITS + noise[:, 0])]), 0)
        assert chosen == logits.choose(LOGITS[:, None], 0)[0]


def test_a_drafts_columns_are_dealt_as_if_it_came_true() -> None:
    params = SamplingParams(temperature=0.9, seed=7, frequency_penalty=1.0)
    wide, narrow = OnShares(params, V), OnShares(params, V)
    columns = wide.noise((2, 2))
    assert columns is not None and columns.shape == (V, 3)
    for column in range(3):
        single = narrow.noise(())
        assert single is not None and (single[:, 0] == columns[:, column]).all()
        narrow.choose(np.array([2]), 0)


tokens = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(tokens, st.integers(0, 6))
def test_a_proposal_did_follow_the_last_tokens(history: list[int], most: int) -> None:
    proposed = propose(history, most)
    assert len(proposed) <= most
    if proposed:
        text, wanted = history, [*history[-2:], *proposed]
        assert any(text[i : i + len(wanted)] == wanted for i in range(len(text)))


@given(tokens, st.integers(1, 4), st.integers(0, 8))
def test_a_guess_fills_the_pass_or_there_is_none(history: list[int], width: int, room: int) -> None:
    guess = Drafts(width).propose(history, room)
    assert len(guess) in (0, width)
    assert not guess or room >= width


def test_fruitless_guesses_stop_for_a_while() -> None:
    drafts, history = Drafts(2), [1, 2, 3, 4, 1, 2]
    for _ in range(Drafts.PATIENCE):
        assert drafts.propose(history, 9)
        drafts.kept(0)
    rests = 0
    while not drafts.propose(history, 9):
        rests += 1
    assert rests == 8


def test_no_width_no_guess() -> None:
    assert Drafts(0).propose([1, 2, 1, 2], 9) == ()


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
