"""Softmax in the two halves of cloister.mpc.cache.base.Softmax: weights of scores, and weighted sums divided."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.functions.exponential import WIDE, PowerExponential
from cloister.mpc.functions.reciprocal import divide_by_last


@dataclass(frozen=True)
class LeanSoftmax:
    """No maximum is sought: a calibrated offset keeps the exponentials within fixed point, a table divides."""

    exponential: PowerExponential = WIDE

    def weigh(self, scores: Array, offset: Array) -> Array:
        return self.exponential(scores - offset)

    def divide(self, sums: Array) -> Array:
        return divide_by_last(sums)


@dataclass(frozen=True)
class TunedSoftmax:
    """The tuned baseline: the row's maximum, (1 + x/64)^64, one reciprocal for each row. Needs no offset."""

    def weigh(self, scores: Array, offset: Array) -> Array:
        del offset
        power = 1 + (scores - scores.max(axis=-1, keepdims=True)) * (1 / 64)
        for _ in range(6):
            power = power * power
        return power

    def divide(self, sums: Array) -> Array:
        return sums[..., :-1] * (1 / sums[..., -1:])


@dataclass(frozen=True)
class NaiveSoftmax:
    """As jax writes it: the row's maximum, the library's exponential, a division for each element."""

    def weigh(self, scores: Array, offset: Array) -> Array:
        del offset
        return jnp.exp(scores - scores.max(axis=-1, keepdims=True))

    def divide(self, sums: Array) -> Array:
        return sums[..., :-1] / sums[..., -1:]
