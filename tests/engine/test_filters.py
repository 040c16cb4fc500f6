"""The cuts against sorting, exactly."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cloister.engine.filters import keep_min_p, keep_top_k, keep_top_p
from cloister.engine.weights import integer

# Few distinct values: ties at the cut are the rule, not the exception.
ROWS = st.lists(st.sampled_from([1.0, 0.9999999, 0.5, 0.3, 0.1, 1e-4, 1e-20, 0.0]), min_size=1, max_size=40)


def weighed(values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    probabilities = torch.tensor([[1.0, *values]])
    return integer(probabilities), probabilities


def order(probabilities: torch.Tensor) -> list[int]:
    values = probabilities[0].tolist()
    return sorted(range(len(values)), key=lambda i: (-values[i], i))


@given(ROWS, st.integers(1, 45))
def test_top_k_is_the_first_k_of_the_sorted(values, k):
    weights, probabilities = weighed(values)
    expected = torch.zeros_like(weights)
    for i in order(probabilities)[:k]:
        expected[0, i] = weights[0, i]
    assert torch.equal(keep_top_k(weights, probabilities, torch.tensor([k])), expected)


@given(ROWS, st.floats(1e-9, 1.0))
def test_top_p_is_the_shortest_sorted_prefix_that_reaches_p(values, p):
    weights, probabilities = weighed(values)
    expected = torch.zeros_like(weights)
    goal, mass = p * float(weights.sum()), 0
    for i in order(probabilities):
        if mass >= goal:
            break
        expected[0, i] = weights[0, i]
        mass += int(weights[0, i])
    kept = keep_top_p(weights, probabilities, torch.tensor([p], dtype=torch.float64))
    assert torch.equal(kept, expected)


@given(ROWS, st.integers(1, 45), st.floats(1e-9, 1.0))
def test_top_p_takes_nothing_back_that_top_k_dropped(values, k, p):
    weights, probabilities = weighed(values)
    left = keep_top_k(weights, probabilities, torch.tensor([k]))
    kept = keep_top_p(left, probabilities, torch.tensor([p], dtype=torch.float64))
    assert bool((kept <= left).all()) and float(kept.sum()) >= p * float(left.sum()) * (1 - 1e-12)


def test_min_p_keeps_what_is_likely_enough():
    weights, probabilities = weighed([0.5, 0.24, 0.25])
    assert (keep_min_p(weights, probabilities, torch.tensor([0.25])) > 0).tolist() == [[True, True, False, True]]


def test_a_row_of_nan_harms_no_other():
    weights, probabilities = weighed([0.5, 0.2])
    both = torch.cat((torch.full_like(probabilities, float("nan")), probabilities))
    p = torch.tensor([0.6, 0.6], dtype=torch.float64)
    kept = keep_top_p(integer(both), both, p)
    assert torch.equal(kept[1:], keep_top_p(weights, probabilities, p[1:]))
