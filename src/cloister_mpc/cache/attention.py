"""Attention of grouped heads in two products, and what a prompt's last queries give to its tokens (§4.2)."""

from math import isqrt

import jax.numpy as jnp
import numpy as np
from jax import Array

from cloister_mpc.cache.base import PromptLayer, Softmax
from cloister_mpc.functions.ring import integers, numbers, on_shares, settled

LARGEST_BLOCK = 2**20
"""Elements of a block-diagonal matrix, above which heads go in several products: its zeros cost arithmetic too."""

LARGEST_WIDTH = 64
"""Columns per row, above which each head is multiplied alone: SPU is thirty times slower with 3,465 than with 1,155."""


def headwise(left: Array, right: Array) -> Array:
    """(G, m, k) @ (G, k, n) → (G, m, n). On shares one block-diagonal product: a batched one sends some per head."""
    if not on_shares():
        return jnp.matmul(left, right)
    heads, rows, inner = left.shape
    at_once = 1 if rows * LARGEST_WIDTH < inner else max(1, isqrt(LARGEST_BLOCK // (rows * inner)))
    if at_once >= heads:
        return _at_once(left, right)
    fractions = all(jnp.issubdtype(factor.dtype, jnp.floating) for factor in (left, right))
    if fractions:
        left, right = integers(left), integers(right)
    parts = [_at_once(left[i : i + at_once], right[i : i + at_once]) for i in range(0, heads, at_once)]
    # Truncated together: truncating each head alone would send messages for each.
    return settled(numbers(jnp.concatenate(parts))) if fractions else jnp.concatenate(parts)


def _at_once(left: Array, right: Array) -> Array:
    heads, rows, inner = left.shape
    product = _block_diagonal(left) @ right.reshape(heads * inner, -1)
    return product.reshape(heads, rows, -1)


def _block_diagonal(blocks: Array) -> Array:
    """(G, m, k) → (G x m, G x k). Zeros must be shares already: sharing public ones would cost a message."""
    heads, rows, inner = blocks.shape
    if jnp.issubdtype(blocks.dtype, jnp.integer):
        own = np.kron(np.eye(heads, dtype=np.int32), np.ones((rows, inner), np.int32))
        return jnp.tile(blocks.reshape(heads * rows, inner), (1, heads)) * own
    zero = blocks[0] - blocks[0]
    return jnp.concatenate(
        [jnp.concatenate([blocks[i] if i == j else zero for j in range(heads)], axis=1) for i in range(heads)]
    )


def scores(queries: Array, keys: Array) -> Array:
    """(H, n, d), scaled already, against (G, t, d): (H, n, t). Heads of a group share their keys."""
    heads, new, size = queries.shape
    grouped = queries.reshape(keys.shape[0], -1, size)
    return headwise(grouped, jnp.swapaxes(keys, 1, 2)).reshape(heads, new, -1)


def fine_scores(queries: Array, keys: Array) -> Array:
    """The same, fine (functions.ring): for callers that gather some of them before truncation."""
    return numbers(scores(integers(queries), integers(keys)))


def shown(weights: Array, visible: Array) -> Array:
    """Weights times public integers, on the ring's elements: a product of numbers would be truncated."""
    return numbers(integers(weights) * visible.astype(integers(weights).dtype))


def weighted(weights: Array, values: Array) -> Array:
    """(H, n, t) over (G, t, d + 1): (H, n, d + 1), whose last column is the softmax's denominator."""
    heads, new, tokens = weights.shape
    grouped = weights.reshape(values.shape[0], -1, tokens)
    return headwise(grouped, values).reshape(heads, new, -1)


def visible_to(new: int, body: int, seen: Array) -> Array:
    """(n, body + R): every new token sees the whole body, and of the pinned slots what `seen` says."""
    return jnp.concatenate([jnp.ones((new, body), jnp.int32), seen], axis=1)


def attention_received(prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
    """(G, T): softmax's probabilities, summed over the given queries (causal) and the heads of a group."""
    heads, groups, tokens = prompt.queries.shape[0], *prompt.keys.shape[:2]
    window = prompt.queries.shape[1]
    visible = jnp.tri(window, tokens, tokens - window, dtype=jnp.int32)
    weights = softmax.weigh(scores(prompt.queries, prompt.keys), offset) * visible
    present = prompt.values[..., -1]
    # Padding asks too and sees nothing: its denominator is made one, and its answers count for nothing.
    absent = jnp.repeat(1 - present[:, tokens - window :], heads // groups, axis=0)[..., None]
    denominators = weighted(weights, present[..., None]) + absent
    reciprocals = softmax.divide(jnp.concatenate([jnp.ones_like(denominators), denominators], axis=-1))
    received = headwise(reciprocals.reshape(groups, 1, -1), weights.reshape(groups, -1, tokens))[:, 0]
    return received * present


def in_runs(tokens: Array, granularity: int) -> Array:
    """(G, M, …) → (G, M // granularity, granularity x …): what a one-hot row over runs takes out whole."""
    return tokens.reshape(tokens.shape[0], tokens.shape[1] // granularity, -1)


def take(rows: Array, tokens: Array, granularity: int = 1) -> Array:
    """The tokens (G, M, d) of the runs that `rows` (G, k, M // granularity) name: (G, k x granularity, d)."""
    return headwise(rows, in_runs(tokens, granularity)).reshape(rows.shape[0], -1, tokens.shape[-1])
