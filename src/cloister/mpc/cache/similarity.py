"""How alike a query and clusters are, from the clusters' marks (§4.3). Knows nothing of ranking."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.clusters import Similarity
from cloister.mpc.cache.headwise import headwise


def of_groups(queries: Array, groups: int) -> Array:
    """(H, n, d) → (G, d): the queries that share a choice, summed, which is local."""
    return queries.reshape(groups, -1, queries.shape[-1]).sum(axis=1)


def similarities(query: Array, marks: tuple[Array, ...], similarity: Similarity) -> tuple[Array, ...]:
    """(G, d) against each level's marks: (G, C) each. All levels are one product, none waits for another."""
    together = marks[0] if len(marks) == 1 else jnp.concatenate(marks, axis=1)
    flat = upper_bound(query, together) if similarity == "max" else headwise(together, query[..., None])[..., 0]
    return tuple(jnp.split(flat, _ends(marks), axis=1))


def upper_bound(query: Array, marks: Array) -> Array:
    """Equation 1: the sum over channels of max(q r_max, q r_min)."""
    products = marks.reshape(*marks.shape[:2], 2, -1) * query[:, None, None, :]
    return jnp.sum(jnp.maximum(products[:, :, 0], products[:, :, 1]), axis=-1)


def _ends(marks: tuple[Array, ...]) -> list[int]:
    ends, end = [], 0
    for mark in marks[:-1]:
        end += mark.shape[1]
        ends.append(end)
    return ends
