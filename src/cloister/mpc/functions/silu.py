"""x * sigmoid(x)."""

from __future__ import annotations

import jax
from jax import Array


def silu(x: Array) -> Array:
    """x * sigmoid(x), elementwise."""
    return jax.nn.silu(x)
