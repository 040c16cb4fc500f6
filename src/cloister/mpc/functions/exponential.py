"""exp on shares by repeated squaring."""

from __future__ import annotations

from jax import Array


def power_exponential(x: Array) -> Array:
    """(1 + x/256)^256."""
    power = 1 + x * (1 / 256)
    for _ in range(8):
        power = power * power
    return power
