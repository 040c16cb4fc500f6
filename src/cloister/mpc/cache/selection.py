"""Clusters chosen level by level (§4.3, hierarchical clustering), all heads at once, and attention over the chosen.

`gather="keys"` takes chosen keys and values out of the body, as the paper. `"scores"` takes out less: the scores of the
whole body are one product whose cost is its output, so only the chosen *scores* are gathered, only they are truncated
and become weights, and the weights are put back into place to meet the values of the whole body: nothing of the size
k x d is gathered.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import fine_scores, read_all, shown, visible_to, weighted
from cloister.mpc.cache.base import Cache, Choice, Softmax
from cloister.mpc.cache.headwise import headwise
from cloister.mpc.cache.ranking import best_rows
from cloister.mpc.cache.static import take
from cloister.mpc.functions.ring import settled


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
