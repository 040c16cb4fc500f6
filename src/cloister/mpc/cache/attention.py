"""Attention of grouped heads, in the two products every method is made of. Knows nothing of selection."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import Softmax
from cloister.mpc.cache.headwise import headwise
from cloister.mpc.functions.ring import integers, numbers


def scores(queries: Array, keys: Array) -> Array:
    """(H, n, d), scaled already, against (G, t, d): (H, n, t). Heads of a group share their keys."""
    heads, new, size = queries.shape
    grouped = queries.reshape(keys.shape[0], -1, size)
    return headwise(grouped, jnp.swapaxes(keys, 1, 2)).reshape(heads, new, -1)


def fine_scores(queries: Array, keys: Array) -> Array:
    """The same, fine (functions.ring): for whoever gathers some of them before they are truncated."""
    return numbers(scores(integers(queries), integers(keys)))


def shown(weights: Array, visible: Array) -> Array:
    """Weights times public integers. Said of the ring's elements, as it would be truncated like a fraction else."""
    return numbers(integers(weights) * visible.astype(integers(weights).dtype))


def weighted(weights: Array, values: Array) -> Array:
    """(H, n, t) over (G, t, d + 1): (H, n, d + 1), whose last column is the softmax's denominator."""
    heads, new, tokens = weights.shape
    grouped = weights.reshape(values.shape[0], -1, tokens)
    return headwise(grouped, values).reshape(heads, new, -1)


def read_all(
    queries: Array, keys: Array, values: Array, softmax: Softmax, offset: Array, visible: Array
) -> tuple[Array, Array]:
    """Attention over everything given, and its weights before division; `visible` is public, (n, t) integers."""
    weights = shown(softmax.weigh(scores(queries, keys), offset), visible)
    return softmax.divide(weighted(weights, values)), weights


def visible_to(new: int, body: int, seen: Array) -> Array:
    """(n, body + R): the whole body is in every new token's past, of the pinned slots what `seen` says."""
    return jnp.concatenate([jnp.ones((new, body), jnp.int32), seen], axis=1)
