"""Fixed-point numbers as the integers that shares hold of them, so that products need not be rounded one by one.

A product of two fixed-point numbers has twice their fraction bits until it is truncated (28 bytes and two messages for
each element on ABY3, where the product itself takes 24 and one). A `fine` number has not been truncated: it is held
2^18 times too large, may be added to other fine ones, gathered by integer rows and compared, and is brought back by
`settled`, once, where it is needed. On plain numbers a fine number is a number like any other. Values must stay far
below 2^26, since the ring has 64 bits.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from cloister.mpc.functions.reveal import on_shares

FRACTION_BITS = 18
"""Of the fixed point of runtimes, and of tables: what a product has too many of."""


def integers(numbers: Array) -> Array:
    """On shares: the ring's elements that stand for fixed-point numbers. Nothing is sent."""
    return lax.bitcast_convert_type(numbers, jnp.int32) if on_shares() else numbers


def numbers(elements: Array) -> Array:
    """On shares: the fixed-point numbers that the ring's elements stand for."""
    return lax.bitcast_convert_type(elements, jnp.float32) if on_shares() else elements


def fine(settled: Array) -> Array:
    """A number as a fine one, to be added to such. Nothing is sent."""
    return numbers(integers(settled) * jnp.int32(2**FRACTION_BITS)) if on_shares() else settled


def settled(fine: Array) -> Array:
    """A fine number as an ordinary one: what a truncation costs."""
    if not on_shares():
        return fine
    # As a product of true matrices, two by two: where the compiler sees a number times a tiny constant, or makes
    # one of a product with a single element, SPU truncates more bits at once: more bytes, and wrong from 2,048 on.
    flat = fine.reshape(-1)
    even = jnp.concatenate([flat, flat[:1]]) if flat.size % 2 else flat
    lowered = even.reshape(-1, 2) @ (np.eye(2) * 2.0**-FRACTION_BITS).astype(np.float32)
    return lowered.reshape(-1)[: flat.size].reshape(fine.shape)
