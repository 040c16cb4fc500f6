"""The real value is exchangeable with the drawn ones: exactly, by counting all draws of small bands."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import exp, log, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.obfuscation.exchangeable import band_with, drawn, log_likelihoods, posterior
from cloister.obfuscation.index import Prf

WEIGHTS = [log(each) for each in (0.4, 0.25, 0.15, 0.1, 0.06, 0.04)]


def likelihood(real: int, chosen: tuple[int, ...], weights: list[float] = WEIGHTS) -> float:
    """By counting: P(chosen | real) of the definition."""
    others = [at for at in range(len(weights)) if at != real]
    total = sum(prod(exp(weights[at]) for at in some) for some in combinations(others, len(chosen)))
    return prod(exp(weights[at]) for at in chosen) / total


def test_sets_are_drawn_with_the_probability_of_their_product() -> None:
    uniforms = Prf(bytes(32)).uniforms(b"test")
    found = Counter(tuple(drawn(WEIGHTS, 2, 2, uniforms)) for _ in range(20_000))
    for chosen in combinations((0, 1, 3, 4, 5), 2):
        assert found[chosen] / 20_000 == pytest.approx(likelihood(2, chosen), abs=0.012)
    assert set(drawn(WEIGHTS, 0, 9, uniforms)) == {1, 2, 3, 4, 5}, "all where there are no more"


@given(st.lists(st.floats(-30, 0), min_size=4, max_size=9), st.data())
def test_the_posterior_is_bayes_rule_whatever_the_prior(weights: list[float], data: st.DataObject) -> None:
    members = data.draw(st.permutations(range(len(weights))))[:3]
    prior = data.draw(st.lists(st.floats(-20, 0), min_size=3, max_size=3))
    joint = [
        exp(believed) * likelihood(one, tuple(each for each in members if each != one), weights)
        for one, believed in zip(members, prior, strict=True)
    ]
    if sum(joint) > 1e-200:
        expected = [each / sum(joint) for each in joint]
        assert posterior(prior, log_likelihoods(weights, members)) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_flat_band_leaves_chance_and_a_peaked_one_says_so() -> None:
    members = list(range(8))
    flat = log_likelihoods([-3.0] * 16, members)
    assert posterior([-3.0] * 8, flat) == pytest.approx([1 / 8] * 8)
    peaked = [0.0] + [-9.0] * 15
    assert posterior(peaked[:8], log_likelihoods(peaked, members))[0] > 0.9
    assert posterior([0.0] + [-5.0] * 7, flat)[0] > 0.9, "another model knows better"


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=70), st.integers(1, 24))
def test_every_member_of_a_band_has_this_band(scores: list[float], size: int) -> None:
    bands = [tuple(sorted(band_with(real, scores, size))) for real in range(len(scores))]
    for real, band in enumerate(bands):
        assert real in band and all(bands[at] == band for at in band)
        assert len(band) >= min(size, len(scores))
