"""λ fakes drawn so that the real value is exchangeable with them under the model that draws (flatness, as of decoys).

A pool is a cell of a fixed partition; its values, the likeliest first, are cut into bands, not knowing the real one:
each of a band would have found this band. In a band a design draws sets of λ+1 values: the one of most entropy
(conditional Poisson sampling) in which each value is included with a probability π_i ∝ p_i, the model's. A secret key
draws from the design, given that the real value is included: P(T | i real) = P(T) / π_i. So the posterior p_i P(T | i)
is the same for every i of T: chance. Where a value has more than its share, p_i > 1/(λ+1), π_i is at most 1 and no draw
can hide it, as the posterior shows. For an adversary with any other prior q the posterior is ∝ q_i / π_i.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MOST = 0.999  # of a π_i: where it is 1, the logarithm of its odds is infinite
_ROUNDS, _CLOSE = 100, 1e-6

Array = npt.NDArray[np.float64]


def band_with(real: int, scores: Sequence[float], size: int) -> list[int]:
    """Places of the band: as many bands as fit `size` values each, all about as large."""
    ranked = sorted(range(len(scores)), key=lambda at: (-scores[at], at))
    count, rank = max(1, len(ranked) // size), ranked.index(real)
    ends = [(at + 1) * len(ranked) // count for at in range(count)]
    number = next(at for at, end in enumerate(ends) if rank < end)
    return ranked[ends[number - 1] if number else 0 : ends[number]]


def bands_apart(scores: Sequence[float], words: Sequence[Collection[str]], size: int) -> list[list[int]]:
    """As `band_with`, all of them, where no word is in two items of a band: an item, the likeliest first, goes to the
    first band that has room and none of its words. What is left in bands that never fill joins full ones."""
    full: list[tuple[list[int], set[str]]] = []
    filling: list[tuple[list[int], set[str]]] = []
    for at in sorted(range(len(scores)), key=lambda at: (-scores[at], at)):
        band = next((one for one in filling if one[1].isdisjoint(words[at])), None)
        if band is None:
            filling.append(band := ([], set()))
        band[0].append(at)
        band[1].update(words[at])
        if len(band[0]) == size:
            filling.remove(band)
            full.append(band)
    short = []
    for at in (at for band, _ in filling for at in band):
        fitting = [one for one in full if len(one[0]) < 2 * size and one[1].isdisjoint(words[at])]
        if not fitting:
            short.append(at)
            continue
        band = min(fitting, key=lambda one: abs(scores[one[0][-1]] - scores[at]))
        band[0].append(at)
        band[1].update(words[at])
    own = [[at for at in band if at in {*short}] for band, _ in filling]
    return [*(band for band, _ in full), *filter(None, own)]


@dataclass(frozen=True, slots=True)
class Design:
    """Sets of `size` places, drawn with a probability ∝ the product of their weights (logarithms)."""

    weights: Array
    inclusion: Array
    size: int

    @classmethod
    def proportional(cls, logprobs: Sequence[float], size: int) -> "Design":
        """With π_i ∝ p_i, as far as no π_i is above 1."""
        likely = np.array(logprobs, dtype=np.float64)
        size = min(size, len(likely))
        wanted = _capped(np.exp(likely - likely.max()), size)
        weights = np.log(wanted) - np.log1p(-wanted)
        for _ in range(_ROUNDS):
            found = _inclusion(weights, size)
            if np.abs(found - wanted).max() < _CLOSE:
                break
            weights += np.log(wanted) - np.log(found)
        return cls(weights, _inclusion(weights, size), size)

    def drawn(self, real: int, uniforms: Iterator[float]) -> list[int]:
        """The other places of a set that has the real one."""
        others = [at for at in range(len(self.weights)) if at != real]
        table = _suffixes(self.weights[others], self.size - 1)
        chosen: list[int] = []
        for number, at in enumerate(others):
            missing = self.size - 1 - len(chosen)
            if not missing:
                break
            taken = self.weights[at] + table[number + 1, missing - 1] - table[number, missing]
            if next(uniforms) < np.exp(taken):
                chosen.append(at)
        return chosen

    def log_likelihoods(self, members: Sequence[int]) -> list[float]:
        """ln P(T | i real) for each member of a drawn set T, up to a term that all have."""
        return [float(each) for each in -np.log(self.inclusion[list(members)])]


def _capped(likely: Array, size: int) -> Array:
    """∝ likely, with the sum `size`, none above `MOST` (unless all must be)."""
    most = max(MOST, size / len(likely) - 1e-9)
    full = np.zeros(len(likely), dtype=bool)
    while True:
        left = size - most * full.sum()
        shared = np.where(full, most, likely * left / max(likely[~full].sum(), 1e-300))
        more = (shared > most) & ~full
        if not more.any():
            return np.clip(shared, 1e-12, 1 - 1e-9)
        full |= more


def _inclusion(weights: Array, size: int) -> Array:
    """π_i = w_i e_{size−1}(all but i) / e_size(all)."""
    behind, before = _suffixes(weights, size), _suffixes(weights[::-1], size)[::-1]
    logs = before[:-1, :size] + behind[1:, size - 1 :: -1] if size > 1 else before[:-1, :1] + behind[1:, :1]
    most = logs.max(axis=1, keepdims=True)
    without = most[:, 0] + np.log(np.exp(logs - most).sum(axis=1))
    found: Array = np.exp(weights + without - behind[0, size])
    return np.maximum(found, 1e-300)


def _suffixes(weights: Array, degree: int) -> Array:
    """[n + 1, degree + 1]: ln of the elementary symmetric polynomials of the weights from place i on."""
    table = np.full((len(weights) + 1, degree + 1), -np.inf)
    table[:, 0] = 0.0
    for at in range(len(weights) - 1, -1, -1):
        table[at, 1:] = np.logaddexp(table[at + 1, 1:], weights[at] + table[at + 1, :-1])
    return table
