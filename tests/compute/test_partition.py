"""Theorem 1: attention in parts is attention, for any cut, any order, and scores of any size."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from cloister.compute.reference import Part, merged, part_of
from tests.examples import examples


@examples(40)
@given(
    cuts=st.lists(st.integers(0, 40), max_size=4),
    order=st.randoms(use_true_random=False),
    size=st.sampled_from([0.01, 1.0, 30.0, 300.0]),
    seed=st.integers(0, 999),
)
def test_parts_of_any_cut_in_any_order_merge_to_the_whole(
    cuts: list[int], order: object, size: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, n, 16, generator=draw, dtype=torch.float64) for n in (3, 40, 40))
    q = q * size
    edges = [0, *sorted(cuts), 40]
    parts = [part_of(q, k[:, a:b], v[:, a:b]) for a, b in pairwise(edges)]
    order.shuffle(parts)  # type: ignore[attr-defined]
    whole = torch.softmax(q @ k.transpose(1, 2), -1) @ v
    torch.testing.assert_close(merged(parts), whole, rtol=1e-9, atol=1e-9)


def test_the_papers_formula_for_two_parts() -> None:
    """γ_in / (γ_in + α·γ_out) and γ_out / (γ_in/α + γ_out) with α = exp(m_out - m_in): §4.2."""
    draw = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, n, 16, generator=draw, dtype=torch.float64) for n in (1, 30, 30))
    inside, outside = part_of(q, k[:, :20], v[:, :20]), part_of(q, k[:, 20:], v[:, 20:])
    alpha = (outside.top - inside.top).exp()
    share_in = inside.total / (inside.total + alpha * outside.total)
    share_out = outside.total / (inside.total / alpha + outside.total)
    torch.testing.assert_close(
        merged([inside, outside]), inside.attended * share_in[..., None] + outside.attended * share_out[..., None]
    )


def test_a_segment_in_which_nothing_is_seen_does_not_count() -> None:
    draw = torch.Generator().manual_seed(4)
    q, k, v = (torch.randn(1, n, 16, generator=draw) for n in (2, 9, 9))
    seen = part_of(q, k, v)
    nothing = Part(torch.full_like(seen.attended, 7.0), torch.zeros(1, 2), torch.zeros(1, 2))
    torch.testing.assert_close(merged([nothing, seen]), seen.attended)
