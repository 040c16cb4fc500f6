"""From a client's one-hots to columns of the residual stream. Pure JAX, alike on shares and on plain numbers.

One-hots are integers, so nothing is truncated: the two of a token are multiplied out (one message) and meet the matrix.
A column whose one-hots are zero is padding and comes out zero.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from cloister.mpc.shape import ModelShape
from cloister.mpc.weights import OuterWeights

BLOCK = 64
"""Columns multiplied out at once, for memory's sake."""


def embed(shape: ModelShape, outer: OuterWeights, coarse: Array, fine: Array, places: Array) -> tuple[Array, Array]:
    """Columns (D, n), and which of them hold a token, (1, n). `places`: one-hots of learned positions, else (0, n)."""
    blocks = []
    for start in range(0, coarse.shape[1], BLOCK):
        here = slice(start, start + BLOCK)
        tokens = (coarse[:, None, here] * fine[None, :, here]).reshape(-1, coarse[:, here].shape[1])
        block = _rows(outer.embedding, tokens[: shape.vocabulary], shape)
        if shape.positions:
            block = block + _rows(outer.places, places[:, here], shape)
        blocks.append(block)
    return jnp.concatenate(blocks, axis=1), jnp.sum(coarse, axis=0, keepdims=True)


def _rows(matrix: Array, one_hots: Array, shape: ModelShape) -> Array:
    # An integer scale costs nothing here, and the matrix itself must stay as the head needs it.
    # As rows: a single column's product with the transposed matrix takes half as long again.
    return ((one_hots.T * int(shape.scales[0])).astype(jnp.float32) @ matrix).T
