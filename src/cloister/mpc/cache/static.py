"""Look-once static eviction (§4.2): the attention that tokens of the prompt got from its last queries, and what is kept
by it. Tokens are kept or dropped in runs of `granularity` adjacent ones; the paper's runs are of one token."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import scores, weighted
from cloister.mpc.cache.base import PromptLayer, Softmax
from cloister.mpc.cache.headwise import headwise


def attention_received(prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
    """(G, T): softmax's probabilities, summed over the given queries (causal) and the heads of a group."""
    heads, groups, tokens = prompt.queries.shape[0], *prompt.keys.shape[:2]
    window = prompt.queries.shape[1]
    visible = jnp.tri(window, tokens, tokens - window, dtype=jnp.int32)
    weights = softmax.weigh(scores(prompt.queries, prompt.keys), offset) * visible
    present = prompt.values[..., -1]
    # Padding asks too, and sees nothing: one instead of nothing below, as its answers count for nothing.
    absent = jnp.repeat(1 - present[:, tokens - window :], heads // groups, axis=0)[..., None]
    received = added_up(softmax, weights, weighted(weights, present[..., None]) + absent, groups)
    return received * present


def added_up(softmax: Softmax, weights: Array, denominators: Array, groups: int) -> Array:
    """(H, n, t) weights over (H, n, 1) denominators, summed over queries and the heads of a group: (G, t)."""
    reciprocals = softmax.divide(jnp.concatenate([jnp.ones_like(denominators), denominators], axis=-1))
    return headwise(reciprocals.reshape(groups, 1, -1), weights.reshape(groups, -1, weights.shape[-1]))[:, 0]


def in_runs(tokens: Array, granularity: int) -> Array:
    """(G, M, …) → (G, M // granularity, granularity x …): what a one-hot row over runs takes out whole."""
    return tokens.reshape(tokens.shape[0], tokens.shape[1] // granularity, -1)


def take(rows: Array, tokens: Array, granularity: int = 1) -> Array:
    """The tokens (G, M, d) of the runs that `rows` (G, k, M // granularity) name: (G, k x granularity, d)."""
    return headwise(rows, in_runs(tokens, granularity)).reshape(rows.shape[0], -1, tokens.shape[-1])
