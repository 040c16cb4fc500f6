"""LongCache (Liu et al., 2024): at every step, the single tokens whose keys have the highest cosine with the query."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from cloister.mpc.cache.base import Eviction
from cloister.mpc.cache.chosen import ChosenCache
from cloister.mpc.cache.headwise import headwise
from cloister.mpc.cache.similarity import of_groups

EPSILON = 2.0**-10
"""Below any key's squared length, and not lost in fixed point: padding has no direction."""


def directions(vectors: Array) -> Array:
    return vectors * lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + EPSILON)


@dataclass(frozen=True)
class LongCache(ChosenCache):
    def marks(self, keys: Array, eviction: Eviction | None) -> Array:
        return directions(keys)

    def similar(self, queries: Array, marks: Array) -> Array:
        return headwise(marks, jnp.swapaxes(of_groups(directions(queries), marks.shape[0]), 1, 2))[..., 0]
