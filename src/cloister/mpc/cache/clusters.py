"""What clusters of adjacent tokens are known by (§4.3), computed once after the prefill. Knows no queries."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jax import Array

Similarity = Literal["linear", "max", "average"]


def cluster_marks(keys: Array, size: int, similarity: Similarity, alpha: float) -> Array:
    """(G, S, d) keys in clusters of `size`: (G, C, d), or (G, C, 2d) with both bounds for the maximum of Equation 1."""
    clustered = keys.reshape(keys.shape[0], -1, size, keys.shape[-1])
    if similarity == "average":
        return jnp.sum(clustered, axis=2) * (1 / size)
    r_max, r_min = jnp.max(clustered, axis=2), jnp.min(clustered, axis=2)
    if similarity == "max":
        return jnp.concatenate([r_max, r_min], axis=-1)
    return r_min + (r_max - r_min) * alpha
