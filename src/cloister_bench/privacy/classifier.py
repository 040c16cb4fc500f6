"""Tells two kinds of streams apart by sizes and moments: logistic regression, boosted stumps and naive Bayes over pairs
of sizes, averaged. AUC on
subjects that were not trained on."""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt

import numpy as np
import numpy.typing as npt

from cloister_bench.privacy.replay import Traffic

FIRST = 40  # events whose sizes and gaps are features each
SIZES = 24  # most frequent sizes, counted
PAIRS = 2003
FOLDS, ROUNDS, RATE, CUTS, RIDGE = 5, 60, 0.2, 12, 3.0
Floats = npt.NDArray[np.float64]


def features(streams: Sequence[Traffic]) -> Floats:
    every = np.array([size for stream in streams for _, size in stream])
    values, counts = np.unique(every, return_counts=True)
    common = values[np.argsort(-counts)][:SIZES]
    return np.array([_of_stream(stream, common) for stream in streams])


def _of_stream(stream: Traffic, common: npt.NDArray[np.int64]) -> list[float]:
    sizes = np.array([size for _, size in stream], float)
    gaps = np.diff([0.0, *(at for at, _ in stream)])
    rest = gaps[1:] if len(gaps) > 1 else gaps
    whole = [len(sizes), sizes.sum(), gaps.sum(), gaps[0], sizes.mean(), sizes.std(), rest.mean(), rest.std()]
    quarters = [*np.quantile(sizes, (0.1, 0.5, 0.9)), *np.quantile(rest, (0.1, 0.5, 0.9))]
    shares = [(sizes == one).mean() for one in common]
    first = [np.pad(each[:FIRST], (0, max(0, FIRST - len(each)))) for each in (sizes, gaps)]
    return [float(one) for one in (*whole, *quarters, *shares, *first[0], *first[1])]


def size_pairs(streams: Sequence[Traffic]) -> Floats:
    """How often each size, and each size after another, comes in a stream; numbers above PAIRS share a column."""
    counts = np.zeros((len(streams), PAIRS))
    for place, stream in enumerate(streams):
        sizes = [size for _, size in stream]
        for number in (*sizes, *(1000 * one + other for one, other in pairwise(sizes))):
            counts[place, number % PAIRS] += 1
    return counts


def crossed_auc(streams: Sequence[Traffic], kinds: Sequence[int], groups: Sequence[int]) -> tuple[float, float, float]:
    """With its interval. No group is in both halves of a fold."""
    x, pairs, y, group = features(streams), size_pairs(streams), np.array(kinds, float), np.array(groups)
    scores, parts = np.zeros(len(y)), []
    for fold in range(FOLDS):
        held = group % FOLDS == fold
        known, by_pairs = (x[~held], y[~held], x[held]), _bayes(pairs[~held], y[~held], pairs[held])
        scores[held] = _ranked(_logistic(*known)) + _ranked(_stumps(*known)) + _ranked(by_pairs)
        parts.append(auc(scores[held], y[held]))
    return with_interval(float(np.mean(parts)), int(y.sum()), int((1 - y).sum()))


def with_interval(area: float, ones: int, zeros: int) -> tuple[float, float, float]:
    """95% (Hanley and McNeil 1982)."""
    both, twice = area / (2 - area), 2 * area * area / (1 + area)
    spread = area * (1 - area) + (ones - 1) * (both - area * area) + (zeros - 1) * (twice - area * area)
    reach = 1.96 * sqrt(max(0.0, spread / (ones * zeros)))
    return round(area, 4), round(max(0.0, area - reach), 4), round(min(1.0, area + reach), 4)


def auc(scores: Floats, kinds: Floats) -> float:
    ones, zeros = scores[kinds == 1], scores[kinds == 0]
    above = ones[:, None] - zeros[None]
    return float(((above > 0) + (above == 0) / 2).mean()) if above.size else 0.5


def _ranked(scores: Floats) -> Floats:
    return np.array([((scores < one).sum() + (scores == one).sum() / 2) / len(scores) for one in scores])


def _logistic(x: Floats, y: Floats, test: Floats) -> Floats:
    middle, spread = x.mean(0), x.std(0) + 1e-9
    spread[x.std(0) < 1e-9] = np.inf  # what never differs counts for nothing
    train, held = (np.c_[np.ones(len(each)), (each - middle) / spread] for each in (x, test))
    weights: Floats = np.zeros(train.shape[1])
    for _ in range(25):  # Newton's method
        p = 1 / (1 + np.exp(-np.clip(train @ weights, -30, 30)))
        slope = train.T @ (p - y) + RIDGE * weights
        curve = (train * (p * (1 - p))[:, None]).T @ train + RIDGE * np.eye(len(weights))
        weights -= np.linalg.solve(curve, slope)
    scores: Floats = np.clip(held, -4, 4) @ weights
    return scores


def _bayes(x: Floats, y: Floats, test: Floats) -> Floats:
    one, other = (x[y == kind].sum(0) + 0.5 for kind in (1, 0))
    return np.asarray(test @ np.log(one / one.sum() / (other / other.sum())) / test.sum(1).clip(1))


def _stumps(x: Floats, y: Floats, test: Floats) -> Floats:
    cuts = np.quantile(x, np.linspace(0.05, 0.95, CUTS), axis=0)  # [cuts, features]
    above = (x[:, None] > cuts[None]).reshape(len(x), -1) * 2.0 - 1
    held = (test[:, None] > cuts[None]).reshape(len(test), -1) * 2.0 - 1
    score, found = np.zeros(len(x)), np.zeros(len(test))
    for _ in range(ROUNDS):
        rest = y - 1 / (1 + np.exp(-score))
        fit = rest @ above / len(x)
        best = int(np.abs(fit).argmax())
        score += RATE * 4 * fit[best] * above[:, best]
        found += RATE * 4 * fit[best] * held[:, best]
    return found
