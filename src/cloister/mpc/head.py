"""From the last layer's columns to the next token or its logits. Pure JAX, alike on shares and on plain numbers.

Sampling inside the computation is argmax(logits + temperature x Gumbel noise): the client deals the noise, so neither
its temperature nor its luck is known to anyone.
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

from cloister.mpc.functions.bundle import Functions
from cloister.mpc.functions.largest import largest
from cloister.mpc.functions.ring import fine, integers, settled
from cloister.mpc.layer import normalise, with_biases
from cloister.mpc.shape import ModelShape
from cloister.mpc.weights import OuterWeights

Answer = Literal["token", "sampled", "logits"]
"""What a client gets: the likeliest token's number, a sampled one's, or all logits (for it alone)."""


def logits(shape: ModelShape, functions: Functions, outer: OuterWeights, hidden: Array) -> Array:
    """(V, n), fine (functions.ring): whoever compares them need not have them truncated."""
    normed = normalise(shape, functions, hidden, shape.epsilon * shape.scales[-1] ** 2)
    if shape.tied:
        matrix, columns = outer.embedding, normed * outer.gain
    else:
        matrix, columns = outer.head, with_biases(shape, normed, jnp.ones((1, hidden.shape[1]), hidden.dtype))
    # A number times an integer is not truncated, and the matrix, much the larger, need not be copied for it.
    fine_logits: Array = matrix @ integers(columns).astype(matrix.dtype)
    return fine_logits


def answer(
    shape: ModelShape, functions: Functions, kind: Answer, outer: OuterWeights, hidden: Array, noise: Array | None
) -> Array:
    """What is fetched after a pass: (n,) numbers of tokens, or logits (V, n)."""
    values = logits(shape, functions, outer, hidden)
    if kind == "logits":
        return settled(values)
    return largest(values + fine(noise) if noise is not None else values)
