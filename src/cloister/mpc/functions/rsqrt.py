"""1/sqrt of a mean square."""

from __future__ import annotations

import jax
from jax import Array


def rsqrt(mean_square: Array) -> Array:
    """1/sqrt, elementwise."""
    return jax.lax.rsqrt(mean_square)
