"""Top-k, top-p and min-p as masks over integer weights, without sorting.

Sorting a vocabulary of 49,152 takes 4.6 ms a row on one core; a two-digit radix selection finds the same cut in 0.3 ms,
for top-k (every token counts 1) and top-p (every token counts its weight) alike. Integers throughout, so a row's cut
does not depend on other rows. Equal tokens at the cut are kept from the lowest id on.
"""

from __future__ import annotations

import torch

from cloister.engine.weights import integer

_DIGIT = 15
_BUCKETS = 1 << _DIGIT
_CERTAIN = 0x3F800000  # the bits of 1.0


def keep_top_k(weights: torch.Tensor, probabilities: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Weights of all but the k most likely tokens set to 0. k is [rows], at least 1."""
    ranks = _ranks(probabilities)
    cut, missing = _cut(ranks, torch.ones_like(weights), k)
    return weights * _kept(ranks, cut, ranks == cut, missing)


def keep_top_p(weights: torch.Tensor, probabilities: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Weights outside the nucleus set to 0: the fewest most likely tokens that hold at least p of the mass left.

    p is [rows] in float64, in (0, 1].
    """
    ranks = _ranks(probabilities)
    total = weights.sum(-1)
    budget = (p * total.double()).ceil().long().clamp(min=1).minimum(total)
    cut, missing = _cut(ranks, weights, budget)
    at_cut = (ranks == cut) & (weights > 0)
    each = integer(_probability(cut)).squeeze(-1).clamp(min=1)
    return weights * _kept(ranks, cut, at_cut, (missing + each - 1) // each)


def keep_min_p(weights: torch.Tensor, probabilities: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Weights of tokens less than p times as likely as the most likely one set to 0. p is [rows]."""
    return weights * (probabilities >= p.unsqueeze(-1))


def _ranks(probabilities: torch.Tensor) -> torch.Tensor:
    """Integers in [0, 2**30) that order like descending probability: bits of non-negative floats order as they do.

    The clamp is for NaN: a sequence whose logits overflow gets nonsense, its neighbours no exception.
    """
    return (_CERTAIN - probabilities.view(torch.int32)).clamp_(0, _CERTAIN)


def _probability(ranks: torch.Tensor) -> torch.Tensor:
    return (_CERTAIN - ranks).int().view(torch.float32)


def _cut(ranks: torch.Tensor, weights: torch.Tensor, budget: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The least rank up to which the weights reach the budget, [rows, 1], and what of the budget is left at it."""
    high = (ranks >> _DIGIT).long()
    first, budget = _bucket(high, weights, budget.unsqueeze(-1))
    low = (ranks & (_BUCKETS - 1)).long()
    second, budget = _bucket(low, weights * (high == first), budget)
    return (first << _DIGIT) + second, budget.squeeze(-1)


def _bucket(digits: torch.Tensor, weights: torch.Tensor, budget: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The bucket in which the running sum reaches the budget, and what of the budget is left before that bucket."""
    sums = weights.new_zeros(weights.shape[0], _BUCKETS).scatter_add_(1, digits, weights)
    running = sums.cumsum(-1)
    bucket = torch.searchsorted(running, budget).clamp_(max=_BUCKETS - 1)
    return bucket, budget - (running.gather(1, bucket) - sums.gather(1, bucket))


def _kept(ranks: torch.Tensor, cut: torch.Tensor, at_cut: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    return (ranks < cut) | (at_cut & (at_cut.cumsum(-1) <= allowed.unsqueeze(-1)))
