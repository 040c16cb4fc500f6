"""The real value is exchangeable with the drawn ones: exactly, by counting all draws of small bands."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.obfuscation.exchangeable import Design, band_with
from cloister.obfuscation.index import Prf
from cloister.obfuscation.variants import posterior

LIKELY = [log(each) for each in (0.28, 0.25, 0.17, 0.14, 0.1, 0.06)]


def probabilities(design: Design) -> dict[tuple[int, ...], float]:
    """Of all sets, by the definition."""
    sets = list(combinations(range(len(design.weights)), design.size))
    products = [exp(sum(design.weights[list(each)])) for each in sets]
    return {each: product / sum(products) for each, product in zip(sets, products, strict=True)}


@given(st.lists(st.floats(-3, 0), min_size=5, max_size=9), st.integers(2, 4))
def test_every_member_of_a_set_is_equally_likely_to_be_the_real_one(likely: list[float], size: int) -> None:
    """Bayes' rule over all sets, where no value has more than its share."""
    share = np.exp(likely) / np.exp(likely).sum()
    design = Design.proportional(likely, size)
    every = probabilities(design)
    for at in range(len(likely)):
        assert design.inclusion[at] == pytest.approx(sum(p for each, p in every.items() if at in each), abs=1e-5)
    if share.max() * size < 0.99:
        for each in every:
            posteriors = posterior([likely[at] for at in each], design.log_likelihoods(each))
            assert posteriors == pytest.approx([1 / size] * size, abs=1e-3)


def test_sets_are_drawn_as_the_design_says() -> None:
    design, uniforms = Design.proportional(LIKELY, 3), Prf(bytes(32)).uniforms(b"test")
    every = {each: p for each, p in probabilities(design).items() if 2 in each}
    found = Counter(tuple(sorted((2, *design.drawn(2, uniforms)))) for _ in range(20_000))
    for each, p in every.items():
        assert found[each] / 20_000 == pytest.approx(p / sum(every.values()), abs=0.012)
    assert set(Design.proportional(LIKELY, 9).drawn(0, uniforms)) == {1, 2, 3, 4, 5}, "all where there are no more"


def test_a_value_with_more_than_its_share_cannot_be_hidden_and_the_posterior_says_so() -> None:
    members = list(range(8))
    peaked = [0.0] + [-9.0] * 15
    assert posterior(peaked[:8], Design.proportional(peaked, 8).log_likelihoods(members))[0] > 0.9
    flat = Design.proportional([-3.0] * 16, 8).log_likelihoods(members)
    assert posterior([-3.0] * 8, flat) == pytest.approx([1 / 8] * 8)
    assert posterior([0.0] + [-5.0] * 7, flat)[0] > 0.9, "another model knows better"


@given(st.lists(st.floats(-400, 0), min_size=2, max_size=200), st.integers(2, 129))
def test_any_scores_make_a_design(likely: list[float], size: int) -> None:
    design = Design.proportional(likely, size)
    assert np.isfinite(design.weights).all() and design.inclusion.sum() == pytest.approx(design.size, rel=1e-3)
    chosen = design.drawn(0, Prf(bytes(32)).uniforms(b""))
    assert len(set(chosen)) == design.size - 1 and 0 not in chosen


@given(st.lists(st.floats(-30, 0), min_size=1, max_size=70), st.integers(1, 24))
def test_every_member_of_a_band_has_this_band(scores: list[float], size: int) -> None:
    bands = [tuple(sorted(band_with(real, scores, size))) for real in range(len(scores))]
    for real, band in enumerate(bands):
        assert real in band and all(bands[at] == band for at in band)
        assert len(band) >= min(size, len(scores))
