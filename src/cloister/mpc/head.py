"""From the last layer's columns to the next token or its logits. Pure JAX, alike on shares and on plain numbers.

Sampling inside the computation is argmax(logits + temperature x Gumbel noise): the client deals the noise, so neither
its temperature nor its luck is known to anyone.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from jax import Array

from cloister.mpc.functions.bundle import Functions
from cloister.mpc.layer import normalise, with_biases
from cloister.mpc.shape import ModelShape
from cloister.mpc.weights import OuterWeights

Answer = Literal["token", "sampled", "logits"]
"""What a client gets: the likeliest token's number, a sampled one's, or all logits (for it alone)."""


def logits(shape: ModelShape, functions: Functions, outer: OuterWeights, hidden: Array) -> Array:
    """(V, n)."""
    normed = normalise(shape, functions, hidden, shape.epsilon * shape.scales[-1] ** 2)
    if shape.tied:
        values: Array = outer.embedding @ (normed * outer.gain)
    else:
        values = outer.head @ with_biases(shape, normed, jnp.ones((1, hidden.shape[1]), hidden.dtype))
    return values


def likeliest(values: Array) -> Array:
    """The numbers (n,) of the largest of (V, n)."""
    rows = [jax.lax.top_k(values[:, column], 1)[1] for column in range(values.shape[1])]
    return jnp.concatenate(rows)


def answer(
    shape: ModelShape, functions: Functions, kind: Answer, outer: OuterWeights, hidden: Array, noise: Array | None
) -> Array:
    """What is fetched after a pass: (n,) numbers of tokens, or logits (V, n)."""
    values = logits(shape, functions, outer, hidden)
    if kind == "logits":
        return values
    return likeliest(values + noise if noise is not None else values)
