"""How alike a query and clusters are, from the clusters' marks (§4.3). Knows nothing of ranking."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.clusters import Similarity
from cloister.mpc.cache.headwise import headwise
from cloister.mpc.functions.ring import integers, numbers

Together = Literal["sum", "max"]
"""How queries that share a choice are heard: their sum, one product for all; or each by itself, then the largest."""


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
