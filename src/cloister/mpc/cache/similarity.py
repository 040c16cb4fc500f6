"""How alike a query and clusters of adjacent tokens are (§4.3): from the clusters' marks, which are computed once after
the prefill. Knows nothing of ranking."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.headwise import headwise
from cloister.mpc.functions.ring import integers, numbers

Similarity = Literal["linear", "max", "average"]
Together = Literal["sum", "max"]
"""How queries that share a choice are heard: their sum, one product for all; or each by itself, then the largest."""


def cluster_marks(keys: Array, size: int, similarity: Similarity, alpha: float) -> Array:
    """(G, S, d) keys in clusters of `size`: (G, C, d), or (G, C, 2d) with both bounds for the maximum of Equation 1."""
    clustered = keys.reshape(keys.shape[0], -1, size, keys.shape[-1])
    if similarity == "average":
        return jnp.sum(clustered, axis=2) * (1 / size)
    r_max, r_min = jnp.max(clustered, axis=2), jnp.min(clustered, axis=2)
    if similarity == "max":
        return jnp.concatenate([r_max, r_min], axis=-1)
    return r_min + (r_max - r_min) * alpha


def of_groups(queries: Array, groups: int) -> Array:
    """(H, n, d) → (G, 1, d): the queries that share a choice, summed.

    By a product with public integers, which is local: a sum would start from a zero that has to be shared first.
    """
    shared = integers(queries).reshape(groups, -1, queries.shape[-1])
    return numbers(jnp.matmul(jnp.ones((1, shared.shape[1]), shared.dtype), shared))


def similarities(
    queries: Array, marks: tuple[Array, ...], similarity: Similarity, together: Together
) -> tuple[Array, ...]:
    """(H, n, d) against each level's marks: (G, C) each. All levels are one product, none waits for another."""
    every = marks[0] if len(marks) == 1 else jnp.concatenate(marks, axis=1)
    groups = every.shape[0]
    asking = of_groups(queries, groups) if together == "sum" else queries.reshape(groups, -1, queries.shape[-1])
    single = upper_bound(asking, every) if similarity == "max" else headwise(every, jnp.swapaxes(asking, 1, 2))
    return tuple(_agreed(level) for level in jnp.split(single, _ends(marks), axis=1))


def upper_bound(queries: Array, marks: Array) -> Array:
    """Equation 1, (G, q, d) against (G, C, 2d): (G, C, q), the sum over channels of max(q r_max, q r_min)."""
    products = marks.reshape(*marks.shape[:2], 1, 2, -1) * queries[:, None, :, None, :]
    return jnp.sum(jnp.maximum(products[..., 0, :], products[..., 1, :]), axis=-1)


def _agreed(single: Array) -> Array:
    """(G, C, q) → (G, C). Of several queries, the one to which a cluster stands out most has its say."""
    if single.shape[-1] == 1:
        return single[..., 0]
    return jnp.max(single - jnp.mean(single, axis=1, keepdims=True), axis=-1)


def _ends(marks: tuple[Array, ...]) -> list[int]:
    ends, end = [], 0
    for mark in marks[:-1]:
        end += mark.shape[1]
        ends.append(end)
    return ends
