"""Clusters of adjacent tokens (§4.3): their marks, computed once after the prefill; how similar queries are to them;
clusters chosen level by level, all heads at once; and attention over the chosen.

`gather="keys"` takes chosen keys and values out of the body, as the paper does. `"scores"` takes out less: the scores
of the whole body are one product whose cost is its output; only the chosen *scores* are gathered, truncated and made
weights; the weights are put back into place to meet the values of the whole body. No array of size k x d is gathered.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from cloister_mpc.cache.attention import fine_scores, headwise, read_all, shown, take, visible_to, weighted
from cloister_mpc.cache.base import Cache, Choice, Softmax
from cloister_mpc.cache.ranking import best_rows
from cloister_mpc.functions.ring import integers, numbers, settled

Similarity = Literal["linear", "max", "average"]
Together = Literal["sum", "max"]
"""How queries that share a choice are combined: summed, one product for all; or each alone, then the largest."""


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
    ends = np.cumsum([mark.shape[1] for mark in marks])
    return tuple(_agreed(level) for level in jnp.split(single, ends[:-1], axis=1))


def upper_bound(queries: Array, marks: Array) -> Array:
    """Equation 1, (G, q, d) against (G, C, 2d): (G, C, q), the sum over channels of max(q r_max, q r_min)."""
    products = marks.reshape(*marks.shape[:2], 1, 2, -1) * queries[:, None, :, None, :]
    return jnp.sum(jnp.maximum(products[..., 0, :], products[..., 1, :]), axis=-1)


def _agreed(single: Array) -> Array:
    """(G, C, q) → (G, C). Of several queries, the one to which a cluster stands out most counts."""
    if single.shape[-1] == 1:
        return single[..., 0]
    return jnp.max(single - jnp.mean(single, axis=1, keepdims=True), axis=-1)


def choose_clusters(similar: tuple[Array, ...], counts: tuple[int, ...], shuffles: tuple[Array | None, ...]) -> Choice:
    """(G, C) similarities per level, coarse first, and how many each level passes on: rows over the finest clusters."""
    rows = best_rows(similar[0], counts[0], shuffles[0])
    for level, count, shuffle in zip(similar[1:], counts[1:], shuffles[1:], strict=True):
        within = headwise(rows, level.reshape(*level.shape[:1], rows.shape[-1], -1))
        picked = best_rows(within.reshape(within.shape[0], -1), count, shuffle)
        rows = _composed(picked, rows)
    return Choice(rows)


def _composed(picked: Array, rows: Array) -> Array:
    """(G, j, k x f) of the parts of (G, k, C) chosen ones: (G, j, C x f)."""
    groups, coarse, clusters = rows.shape
    parts = picked.reshape(groups, picked.shape[1], coarse, -1)
    chosen, factor = parts.shape[1], parts.shape[3]
    spread = headwise(parts.transpose(0, 1, 3, 2).reshape(groups, chosen * factor, coarse), rows)
    return spread.reshape(groups, chosen, factor, clusters).transpose(0, 1, 3, 2).reshape(groups, chosen, -1)


def attend_by_scores(
    queries: Array, cache: Cache, choice: Choice, softmax: Softmax, offset: Array, seen: Array
) -> Array:
    """(H, n, d): attention over chosen clusters and pinned tokens, the scores gathered."""
    heads, new, _ = queries.shape
    groups, chosen, clusters = choice.rows.shape
    body = cache.keys.shape[1]
    every = fine_scores(queries, jnp.concatenate([cache.keys, cache.pinned_keys], axis=1))
    by_cluster = every[..., :body].reshape(groups, -1, clusters, body // clusters).transpose(0, 2, 1, 3)
    taken = headwise(choice.rows, by_cluster.reshape(groups, clusters, -1))
    read = taken.reshape(groups, chosen, -1, body // clusters).transpose(0, 2, 1, 3).reshape(heads, new, -1)
    visible = visible_to(new, read.shape[-1], seen)
    asked = settled(jnp.concatenate([read, every[..., body:]], axis=-1))
    weights = shown(softmax.weigh(asked, offset), visible)
    given = weights[..., : read.shape[-1]].reshape(groups, -1, chosen, body // clusters).transpose(0, 2, 1, 3)
    spread = headwise(jnp.swapaxes(choice.rows, 1, 2), given.reshape(groups, chosen, -1))
    placed = spread.reshape(groups, clusters, -1, body // clusters).transpose(0, 2, 1, 3).reshape(heads, new, body)
    values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
    return softmax.divide(weighted(jnp.concatenate([placed, weights[..., read.shape[-1] :]], axis=-1), values))


def attend_by_keys(queries: Array, cache: Cache, choice: Choice, softmax: Softmax, offset: Array, seen: Array) -> Array:
    """The same, with the chosen clusters' keys and values gathered (Algorithm 3, lines 28 and 29)."""
    size = cache.keys.shape[1] // choice.rows.shape[-1]
    keys = jnp.concatenate([take(choice.rows, cache.keys, size), cache.pinned_keys], axis=1)
    values = jnp.concatenate([take(choice.rows, cache.values, size), cache.pinned_values], axis=1)
    visible = visible_to(queries.shape[1], keys.shape[1] - cache.pinned_keys.shape[1], seen)
    return read_all(queries, keys, values, softmax, offset, visible)[0]
