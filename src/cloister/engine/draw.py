"""The random stream, one number for (seed, output index) and for nothing else; and the index it points to.

Counter-based, so a draw does not depend on the batch, on preemption or on how often it is repeated. Not a secret: it
serves reproducibility, never cryptography.
"""

from __future__ import annotations

import torch

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) with 53 random bits: SplitMix64 (Steele et al., 2014) from a mixed seed, at step `index`."""
    state = _mix((seed + _GOLDEN) & _MASK)
    return (_mix((state + (index + 1) * _GOLDEN) & _MASK) >> 11) * 2.0**-53


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def draw(weights: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The index in each row of integer weights at which the cumulative sum passes the part u of the total."""
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    mark = (u.unsqueeze(-1) * total.double()).long().minimum(total - 1)
    return torch.searchsorted(cumulative, mark, right=True).squeeze(-1)
