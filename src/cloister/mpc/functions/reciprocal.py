"""Division of weighted sums by their common denominator."""

from __future__ import annotations

from jax import Array


def divide_by_last(sums: Array) -> Array:
    """(…, d + 1) → (…, d): all columns divided by the last, which is positive."""
    return sums[..., :-1] * (1 / sums[..., -1:])
