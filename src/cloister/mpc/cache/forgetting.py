"""Forgetting one token for each generated one: its values become zero, so that it weighs nothing from then on. Which
one it is stays secret, so no cache gets smaller by it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import Cache
from cloister.mpc.cache.ranking import gathered_rows

NEVER = 2.0**14
"""Above any attention a token can gather in a generation, within fixed point."""


def forget_lowest(cache: Cache, worth: Array, protected: Array, count: int) -> Cache:
    """The cache without the `count` tokens of lowest `worth` (G, S + R); `protected` ones (S + R), public, stay."""
    values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
    worth = worth * (1 - protected) + protected * NEVER
    worth = worth + (1 - values[..., -1]) * NEVER
    lowest = jnp.sum(gathered_rows(-worth, count), axis=1)
    left = values * (1 - lowest)[..., None]
    body = cache.values.shape[1]
    return cache._replace(values=left[:, :body], pinned_values=left[:, body:])
