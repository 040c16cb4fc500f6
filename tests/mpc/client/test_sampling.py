from __future__ import annotations

import numpy as np
import pytest

from cloister.messages.generation import SamplingParams
from cloister.mpc.client.answer import FromLogits, OnShares, chooser_for, gumbel

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
