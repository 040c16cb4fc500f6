"""x * Phi(x)."""

from __future__ import annotations

import jax
from jax import Array


def gelu(x: Array) -> Array:
    """x * Phi(x) in GPT-2's tanh form, elementwise."""
    return jax.nn.gelu(x, approximate=True)
