"""The order of ranks; the random stream is uniform; and the draw against a plain reference that sorts, exactly."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.compute.layer import Draws
from cloister.engine.logits import Adjustments, best, draw_filtered, draw_rows, integer, uniform
from cloister.messages.types import SamplingParams

# Few distinct values: ties at the cut are the rule, not the exception.
ROWS = st.lists(st.sampled_from([1.0, 0.9999999, 0.5, 0.3, 0.1, 1e-4, 1e-20, 0.0]), min_size=1, max_size=40)


def kept(values: list[float], params: SamplingParams) -> list[int]:
    """Ids left by the filters, most likely first."""
    values = torch.tensor(values).tolist()
    weights = integer(torch.tensor(values)).tolist()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    order = order[: params.top_k or len(order)]
    goal, mass, nucleus = params.top_p * float(sum(weights[i] for i in order)), 0, []
    for i in order:
        if nucleus and mass >= goal:
            break
        nucleus.append(i)
        mass += weights[i]
    least = torch.tensor(params.min_p, dtype=torch.float32).item()
    return [i for i in nucleus if values[i] >= least]


def drawn(values: list[float], params: SamplingParams, u: float) -> int:
    weights = integer(torch.tensor(values)).tolist()
    left = kept(values, params)
    mark = u * sum(weights[i] for i in left)
    for i in left:
        mark -= weights[i]
        if mark < 0:
            return i
    raise AssertionError


def how(params: list[SamplingParams], width: int, u: float) -> Draws:
    top_k = [p.top_k or width for p in params]
    top_p, min_p = [p.top_p for p in params], [p.min_p for p in params]
    return Draws([p.temperature for p in params], top_k, top_p, min_p, [u] * len(params))


def ours(values: list[float], params: SamplingParams, u: float) -> int:
    probabilities = torch.tensor([values])
    return int(draw_filtered(probabilities, integer(probabilities), how([params], len(values), u)))


@settings(deadline=None)
@given(ROWS, st.integers(0, 45), st.floats(1e-9, 1.0), st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.integers(0, 999))
def test_the_draw_is_that_of_a_sort(values, k, p, min_p, u):
    values = [1.0, *values]
    params = SamplingParams(top_k=k, top_p=p, min_p=min_p)
    assert ours(values, params, u / 1000) == drawn(values, params, u / 1000)


def test_rows_that_need_a_few_ranks_and_rows_that_need_nearly_all():
    chance = random.Random(4)
    for sharpness in (0.1, 2.0, 30.0):
        values = [1.0] + [chance.random() ** sharpness for _ in range(255)]
        for params in (
            SamplingParams(top_p=0.95),
            SamplingParams(top_k=3),
            SamplingParams(top_k=100, top_p=0.9),
            SamplingParams(min_p=0.2),
            SamplingParams(top_k=200, min_p=0.01),
            SamplingParams(top_p=0.999, min_p=1e-6),
        ):
            for u in (0.0, 0.3, 0.77, 0.999999):
                assert ours(values, params, u) == drawn(values, params, u)


@pytest.mark.parametrize(
    ("params", "left"),
    [
        (SamplingParams(top_k=3), [1, 0, 3]),
        (SamplingParams(top_p=0.8), [1, 0]),
        (SamplingParams(top_p=0.81), [1, 0, 3]),
        (SamplingParams(min_p=0.25), [1, 0, 3]),
        (SamplingParams(top_k=2, top_p=0.6), [1]),
    ],
)
def test_each_filter_leaves_what_it_should(params, left):
    values = [0.6, 1.0, 0.15, 0.25]
    assert kept(values, params) == left
    assert [ours(values, params, u / 500) for u in range(500)] == [drawn(values, params, u / 500) for u in range(500)]
    assert {ours(values, params, u / 500) for u in range(500)} == set(left)


def test_equals_are_kept_from_the_lowest_id_on():
    values = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    for params, left in (
        (SamplingParams(top_p=0.5), {1, 3}),
        (SamplingParams(top_p=0.51), {1, 3, 5}),
        (SamplingParams(top_p=1e-9), {1}),
        (SamplingParams(top_k=2), {1, 3}),
    ):
        assert {ours(values, params, u / 100) for u in range(100)} == left


def test_only_filters_count_as_filters():
    """Without one the draw is in order of id, with one in order of rank."""
    off = SamplingParams(temperature=0.5, seed=1)
    on = [SamplingParams(top_k=1), SamplingParams(top_p=0.9), SamplingParams(min_p=0.1)]
    logits = torch.tensor([[0.0, 0.5]])
    assert draw_rows(logits.expand(5, -1), how([off, *on, off], 2, 0.01)).tolist() == [0, 1, 1, 1, 0]


def test_a_row_of_nan_harms_no_other():
    good = torch.tensor([[1.0, 0.5, 0.2]])
    both = torch.cat((torch.full_like(good, float("nan")), good))
    params = SamplingParams(top_p=0.6)
    tokens = draw_filtered(both, integer(both), how([params] * 2, 3, 0.9))
    assert int(tokens[1]) == drawn([1.0, 0.5, 0.2], params, 0.9)


def test_a_draw_is_a_function_of_seed_and_index() -> None:
    assert uniform(7, 3) == uniform(7, 3)
    assert len({uniform(seed, index) for seed in range(50) for index in range(50)}) == 2500


def test_draws_are_uniform_along_indices_and_along_seeds() -> None:
    for draws in ([uniform(1, i) for i in range(20_000)], [uniform(s, 0) for s in range(20_000)]):
        assert all(0 <= u < 1 for u in draws)
        cells = Counter(int(u * 20) for u in draws)
        chi_square = sum((cells[c] - 1000) ** 2 / 1000 for c in range(20))
        assert chi_square < 43.8  # 19 degrees of freedom, p = 0.001


def test_neighbouring_seeds_and_indices_are_uncorrelated() -> None:
    pairs = [(uniform(s, 0), uniform(s + 1, 0)) for s in range(5000)]
    pairs += [(uniform(s, 1), uniform(s + 1, 0)) for s in range(5000)]
    correlation = sum((a - 0.5) * (b - 0.5) for a, b in pairs) / len(pairs) * 12
    assert abs(correlation) < 0.05


@given(st.integers(0, 10**6), st.sampled_from([1, 5, 20, 40, 128]), st.sampled_from([128, 4096, 16384]), st.booleans())
def test_best_is_the_head_of_a_stable_sort(seed, count, width, many_ties):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, width, generator=generator)
    if many_ties:
        rows = (rows * 2).round() / 2
        rows[rows == 0] *= torch.where(torch.rand(int((rows == 0).sum()), generator=generator) < 0.5, 1.0, -1.0)
    expected = torch.sort(rows, dim=-1, descending=True, stable=True).indices[:, :count]
    assert torch.equal(best(rows, count), expected)


def test_minus_infinity_comes_last():
    rows = torch.full((1, 128), float("-inf"))
    rows[0, 100] = -1e30
    assert best(rows, 3).tolist() == [[100, 0, 1]]


def test_penalties_that_grow_or_end_leave_no_tokens_behind() -> None:
    params = SamplingParams(repetition_penalty=1.2, logit_bias={7: 1.0})
    adjustments = Adjustments(params, range(300, 340), [], torch.device("cpu"))
    before = adjustments._tokens
    assert before[:40].tolist() == list(range(300, 340))
    for token in range(400, 500):
        adjustments.note(token)
    assert not before.any() and adjustments._tokens[:140].tolist() == [*range(300, 340), *range(400, 500)]
    held = adjustments._tokens, adjustments._biased
    adjustments.forget()
    assert not any(each.any() for each in held)
