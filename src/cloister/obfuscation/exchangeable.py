"""λ fakes drawn so that the real value is exchangeable with them under the model that draws (flatness, as of decoys).

A pool is a cell of a fixed partition; its values, the likeliest first, are cut into bands, not knowing the real one.
From the real one's band B a secret key draws a set of λ others with probability ∝ ∏ w_j (conditional Poisson
sampling). Every value of the set T would have drawn the others with
    P(T | i real) = ∏_{j ∈ T, j ≠ i} w_j / e_λ(B without i),
e_λ the elementary symmetric polynomial. If values are real with probability ∝ w_i, the product is the same for all i
of T, and what is left of the posterior is 1 / e_λ(B without i). For any other prior q it is ∝ q_i / (w_i e_λ(B − i)).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Logs = npt.NDArray[np.float64]


def band_with(real: int, scores: Sequence[float], size: int) -> list[int]:
    """Places of the band: as many bands as fit `size` values each, all about as large."""
    ranked = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    count, rank = max(1, len(ranked) // size), ranked.index(real)
    ends = [(at + 1) * len(ranked) // count for at in range(count)]
    number = next(at for at, end in enumerate(ends) if rank < end)
    return ranked[ends[number - 1] if number else 0 : ends[number]]


def drawn(weights: Sequence[float], real: int, count: int, uniforms: Iterator[float]) -> list[int]:
    """`count` places other than the real one, or all where there are no more. Weights are logarithms."""
    others = [at for at in range(len(weights)) if at != real]
    table = _suffixes([weights[at] for at in others], min(count, len(others)))
    chosen: list[int] = []
    missing = table.shape[1] - 1
    for number, at in enumerate(others):
        if not missing:
            break
        taken = weights[at] + table[number + 1, missing - 1] - table[number, missing]
        if next(uniforms) < np.exp(taken):
            chosen.append(at)
            missing -= 1
    return chosen


def log_likelihoods(weights: Sequence[float], members: Sequence[int]) -> list[float]:
    """ln P(T | i real) for each member of the set T, places in the band, up to a term that all have."""
    others = [[weight for at, weight in enumerate(weights) if at != member] for member in members]
    sums = [float(_suffixes(each, len(members) - 1)[0, -1]) for each in others]
    return [-weights[member] - total for member, total in zip(members, sums, strict=True)]


def posterior(prior: Sequence[float], likelihoods: Sequence[float]) -> list[float]:
    """That each is the real one, for a prior ∝ exp(prior)."""
    logs = np.array([one + other for one, other in zip(prior, likelihoods, strict=True)])
    odds = np.exp(logs - logs.max())
    return [float(one) for one in odds / odds.sum()]


def _suffixes(weights: Sequence[float], degree: int) -> Logs:
    """[n + 1, degree + 1]: ln e_k of the last n − i weights."""
    table = np.full((len(weights) + 1, degree + 1), -np.inf)
    table[:, 0] = 0.0
    for at in range(len(weights) - 1, -1, -1):
        table[at, 1:] = np.logaddexp(table[at + 1, 1:], weights[at] + table[at + 1, :-1])
    return table
