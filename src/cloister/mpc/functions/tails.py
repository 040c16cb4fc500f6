"""The outer parts of activations that are nothing on the left and the input itself on the right."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def with_tails(x: Array, middle: Array, edge: float, right: Array | None = None) -> Array:
    """`middle` where |x| <= edge, 0 to the left, to the right `right`: x itself unless another is given.

    11 messages, 328 bytes an element on ABY3: both comparisons are one batch, the public matrix makes their bits
    integers (32 bytes a bit instead of 40), both products are another batch. `middle` may have overflowed outside: what
    is multiplied by the integer zero is gone exactly.
    """
    above = jnp.stack([x.reshape(-1)] * 2) > jnp.array([[-edge], [edge]], x.dtype)
    inside_and_right = jnp.array([[1, -1], [0, 1]], jnp.int32) @ above.astype(jnp.int32)
    chosen = inside_and_right.reshape(2, *x.shape) * jnp.stack([middle, x if right is None else right])
    return chosen[0] + chosen[1]
