"""The random stream, one number for (seed, output index) and for nothing else; and the token it points to.

Counter-based, so a draw does not depend on the batch, on preemption or on how often it is repeated. Not a secret: it
serves reproducibility, never cryptography.

Top-k, top-p and min-p each keep the most likely tokens down to some rank (equals from the lowest id on), so together
they keep a prefix of the ranking: the draw needs only as much of the ranking as that prefix. Sorting a vocabulary of
49,152 takes 4.6 ms a row on one core and is the last resort. Ranks and sums are exact, so how much was ranked does not
show.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cloister.engine.probabilities import best
from cloister.messages.generation import SamplingParams

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_RANKED_FIRST = (64, 1024)


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


@dataclass(frozen=True, slots=True)
class Limits:
    """The filters of some rows, on their device; k is the whole width where top-k is off."""

    k: torch.Tensor
    p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, params: list[SamplingParams], width: int, device: torch.device) -> Limits:
        """The limits these parameters set, for rows of this width."""
        return cls(
            k=torch.tensor([min(p.top_k or width, width) for p in params], dtype=torch.int64, device=device),
            p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device).unsqueeze(-1),
        )

    def rows(self, index: torch.Tensor) -> Limits:
        """The limits of some of the rows."""
        return Limits(self.k[index], self.p[index], self.min_p[index])


def filters(params: SamplingParams) -> bool:
    """Whether any filter is on."""
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def draw_filtered(probabilities: torch.Tensor, weights: torch.Tensor, limits: Limits, u: torch.Tensor) -> torch.Tensor:
    """One token of each row at u in [0, 1), by the inverse of the cumulative distribution in order of rank."""
    width = weights.shape[-1]
    if weights.device.type != "cpu":  # elsewhere sorting is cheap and asking whether it is needed is not
        return _draw(probabilities, weights, limits, u, width)[0]
    tokens, settled = _draw(probabilities, weights, limits, u, min(_RANKED_FIRST[0], width))
    for ranked in (*_RANKED_FIRST[1:], width):
        open_rows = (~settled).nonzero().squeeze(-1)
        if not len(open_rows):
            break
        tokens[open_rows], settled[open_rows] = _draw(
            probabilities[open_rows], weights[open_rows], limits.rows(open_rows), u[open_rows], min(ranked, width)
        )
    return tokens


def _draw(
    probabilities: torch.Tensor, weights: torch.Tensor, limits: Limits, u: torch.Tensor, ranked: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens, and whether so many ranks were enough to tell."""
    ids = best(probabilities, ranked)
    likely = probabilities.gather(1, ids)
    mass = weights.gather(1, ids).cumsum(-1)
    k = limits.k.clamp(max=ranked).unsqueeze(-1)
    of_k = mass.gather(1, k - 1)
    total = torch.where(limits.k.unsqueeze(-1) <= ranked, of_k, weights.sum(-1, keepdim=True))
    goal = (limits.p.unsqueeze(-1) * total.double()).ceil().long().minimum(total)
    in_nucleus = (mass < goal).sum(-1, keepdim=True) + 1
    likely_enough = (likely >= limits.min_p).sum(-1, keepdim=True)
    kept = k.minimum(in_nucleus).minimum(likely_enough).clamp(min=1)
    left = mass.gather(1, kept - 1)
    mark = (u.unsqueeze(-1) * left.double()).long().minimum(left - 1)
    place = torch.searchsorted(mass, mark, right=True).clamp_(max=ranked - 1)
    unlimited = limits.k == weights.shape[-1]
    cut = (in_nucleus.squeeze(-1) <= ranked) | (likely_enough.squeeze(-1) < ranked)
    return ids.gather(1, place).squeeze(-1), (limits.k <= ranked) | (unlimited & cut)
