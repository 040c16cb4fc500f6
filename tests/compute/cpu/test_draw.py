"""Drawing in C against the same draw written plainly, on rows of every temper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloister.compute.cpu.library import find_compiler
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.layer import Draws

WIDTH = 1024


@pytest.fixture(scope="module")
def kernels() -> NativeKernels:
    if find_compiler() is None:
        pytest.skip("no C compiler on this machine")
    return NativeKernels(torch.float32, threads=2)


def plainly(logits: list[float], temperature: float, k: int, p: float, min_p: float, u: float) -> tuple[int, float]:
    """The token, and how near (in parts of the mass) the draw or the nucleus' end came to being another."""
    top = max(logits)
    relative = [math.exp((x - top) / temperature) for x in logits]
    filtered = k < len(logits) or p < 1 or min_p > 0
    order = sorted(range(len(logits)), key=lambda i: (-relative[i], i)) if filtered else list(range(len(logits)))
    kept: list[int] = []
    total = sum(relative[i] for i in order[:k])
    mass, goal, margin = 0.0, p * total, 1.0
    for i in order[:k]:
        if filtered and kept:
            margin = min(margin, abs(mass - goal) / total if p < 1 else 1.0)
            if mass >= goal or relative[i] < min_p:
                break
        kept.append(i)
        mass += relative[i]
    mark, sofar = u * mass, 0.0
    for i in kept:
        before, sofar = sofar, sofar + relative[i]
        if sofar > mark:
            return i, min(margin, (sofar - mark) / mass, (mark - before) / mass if before else 1.0)
    return kept[-1], 0.0


def how(rows: int, **given: float) -> Draws:
    chosen = {"temperature": 1.0, "top_k": WIDTH, "top_p": 1.0, "min_p": 0.0, "u": 0.5, **given}
    return Draws(**{name: [value] * rows for name, value in chosen.items()})  # type: ignore[arg-type]


@example(136292, 0.01, 1.0, WIDTH, 0.9, 0.0, 0.45703125)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([1, 2, 50, 500, WIDTH]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5]),
    u=st.floats(0, 1, exclude_max=True),
)
def test_equals_the_plain_draw(
    kernels: NativeKernels,
    seed: int,
    spread: float,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    u: float,
) -> None:
    rows = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(seed)) * spread
    rows[1] = rows[1].round()  # many equals
    drawn = kernels.draw(rows, how(3, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, u=u))
    for row, token in zip(rows, drawn.tolist(), strict=True):
        expected, margin = plainly(row.tolist(), temperature, top_k, top_p, min_p, u)
        alike = abs(row[token] - row[expected]) < 1e-6 * temperature  # in single precision either may come first
        assert token == expected or margin < 1e-6 or alike
        ranked = row.sort(descending=True).values
        assert row[token] >= ranked[min(top_k, WIDTH) - 1]
        assert math.exp((row[token] - ranked[0]) / temperature) >= min_p * 0.999


def test_frequencies_are_the_probabilities(kernels: NativeKernels) -> None:
    logits = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)) * 3
    draws = 20_000
    for filters in ({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.1}):
        given = how(draws, **filters)
        us = [(i + 0.5) / draws for i in range(draws)]
        tokens = kernels.draw(
            logits.expand(draws, -1).contiguous(), Draws(given.temperature, given.top_k, given.top_p, given.min_p, us)
        )
        share = torch.bincount(tokens, minlength=WIDTH).double() / draws
        ranked, order = logits.double().softmax(-1).sort(descending=True)
        before = ranked.cumsum(-1) - ranked
        kept = (before < filters.get("top_p", 1.0)) & (ranked >= filters.get("min_p", 0.0) * ranked[0])
        kept &= torch.arange(WIDTH) < filters.get("top_k", WIDTH)
        expected = torch.zeros(WIDTH, dtype=torch.float64).index_put((order,), ranked * kept)
        torch.testing.assert_close(share, expected / expected.sum(), rtol=0, atol=2 / draws)
        assert (share[expected == 0] == 0).all()


def test_a_row_is_drawn_the_same_in_any_company(kernels: NativeKernels) -> None:
    rows = torch.randn(31, WIDTH) * 3
    given = how(31, top_p=0.9, u=0.77)
    together = kernels.draw(rows, given)
    alone = [int(kernels.draw(rows[i : i + 1].contiguous(), how(1, top_p=0.9, u=0.77))) for i in range(31)]
    assert together.tolist() == alone


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.2}])
def test_strange_rows_still_give_a_token(kernels: NativeKernels, filters: dict[str, float]) -> None:
    rows = torch.zeros(4, WIDTH)
    rows[1, 1:] = -math.inf
    rows[2, 7] = 1e30
    rows[3] = math.nan
    tokens = kernels.draw(rows, how(4, u=0.999999, **filters)).tolist()
    assert tokens[1] == 0 and tokens[2] == 7
    assert all(0 <= token < WIDTH for token in tokens)


def test_rows_that_do_not_fit_never_reach_c(kernels: NativeKernels) -> None:
    with pytest.raises(ValueError, match="whole vectors"):
        kernels.draw(torch.zeros(1, 17), how(1))
    with pytest.raises(ValueError, match="each row"):
        kernels.draw(torch.zeros(2, WIDTH), how(1))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(st.sampled_from([0, 2**64 - 1, 1, 2**63, 0xDEADBEEF12345678]), min_size=1, max_size=20))
def test_a_mask_leaves_what_has_a_bit_and_nothing_else(kernels: NativeKernels, words: list[int]) -> None:
    """Whether the row is longer or shorter than the mask."""
    row = torch.randn(WIDTH, generator=torch.Generator().manual_seed(1))
    masked = row.clone()
    kernels.mask(masked, np.array(words, dtype=np.uint64).view(np.uint8))
    bits = [word >> at & 1 for word in words for at in range(64)]
    allowed = torch.tensor([*bits, *[0] * WIDTH][:WIDTH], dtype=torch.bool)
    assert torch.equal(masked[allowed], row[allowed]) and masked[~allowed].isneginf().all()


def test_a_mask_that_is_not_whole_is_refused(kernels: NativeKernels) -> None:
    row, mask = torch.zeros(128), np.zeros(16, dtype=np.uint8)
    for wrong in (torch.zeros(100), torch.zeros(256)[::2], torch.zeros(2, 64), torch.zeros(128, dtype=torch.float64)):
        with pytest.raises(ValueError, match="row"):
            kernels.mask(wrong, mask)
    for bits in (mask[:12], mask[1:9], np.zeros(32, dtype=np.uint8)[::2], mask.view(np.int8)):
        with pytest.raises(ValueError, match="whole words"):
            kernels.mask(row, bits)
