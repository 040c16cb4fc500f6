"""Theorem 1 of Petridish (§4.2) in torch: attention over segments, each by itself, merged without loss.

The yardstick of the C kernels and of anyone who reads the paper beside the code. It knows tensors; it does not know
caches, processes or who may see what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Part:
    """What queries found in one segment: A = softmax(q·Kᵀ)·V, m = max(q·Kᵀ) and γ = Σ exp(q·Kᵀ - m).

    The last dimension of `attended` is the head's; `top` and `total` have one entry for each query. A segment in
    which a query sees nothing has γ = 0, and whatever A it has does not count.
    """

    attended: torch.Tensor
    top: torch.Tensor
    total: torch.Tensor


def part_of(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Part:
    """The part of scaled queries [kv heads, queries, dim] over keys and values [kv heads, positions, dim]."""
    if keys.shape[1] == 0:
        none = q.new_zeros(q.shape[:2])
        return Part(torch.zeros_like(q), none, none)
    scores = q @ keys.transpose(1, 2)
    top = scores.amax(-1)
    weights = (scores - top[..., None]).exp()
    total = weights.sum(-1)
    return Part(weights @ values / total[..., None], top, total)


def merged(parts: Sequence[Part]) -> torch.Tensor:
    """The attention over all segments together, whatever their order and number.

    With two parts this is the paper's formula: the coefficients γ_in / (γ_in + α·γ_out) and γ_out / (γ_in/α + γ_out),
    α = exp(m_out - m_in). The largest m is subtracted from all, so that no exponential overflows.
    """
    if len(parts) == 1:
        return parts[0].attended
    totals = torch.stack([part.total for part in parts])
    tops = torch.stack([part.top for part in parts]).masked_fill(totals == 0, -torch.inf)
    weights = totals * (tops - tops.amax(0)).exp()
    shares = weights / weights.sum(0)
    whole = torch.zeros_like(parts[0].attended)
    for part, share in zip(parts, shares, strict=True):
        whole += part.attended * share[..., None]
    return whole
