"""One product for all heads. On shares a batched product costs its messages once per head; with one factor laid out as
a block-diagonal matrix it costs them once, at the same number of bytes, for more local arithmetic. On plain numbers it
is an ordinary batched product."""

from __future__ import annotations

from math import isqrt

import jax.numpy as jnp
import numpy as np
from jax import Array

from cloister.mpc.functions.reveal import on_shares
from cloister.mpc.functions.ring import integers, numbers, settled

LARGEST_BLOCK = 2**20
"""Elements of a block-diagonal matrix, above which heads go in several products: its zeros are arithmetic too."""

LARGEST_WIDTH = 64
"""Columns per row, above which each head has a product of its own: SPU multiplies nine rows of 3,465 columns thirty
times more slowly than thrice three rows of 1,155 (measured on ABY3), and the messages saved are two of a layer's."""


def headwise(left: Array, right: Array) -> Array:
    """(G, m, k) @ (G, k, n) → (G, m, n)."""
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
    # Truncated together, or each head would have messages of its own for that too.
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
