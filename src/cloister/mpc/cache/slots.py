"""Generated tokens in the cache: where they are written and which of them a token may see. Positions are public."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from cloister.mpc.cache.base import Cache


def write(cache: Cache, slot: int | Array, keys: Array, values: Array) -> Cache:
    """The cache with new tokens' keys (G, n, d) and values (G, n, d + 1) in pinned slots from `slot` (public) on."""
    return cache._replace(
        pinned_keys=lax.dynamic_update_slice_in_dim(cache.pinned_keys, keys, slot, axis=1),
        pinned_values=lax.dynamic_update_slice_in_dim(cache.pinned_values, values, slot, axis=1),
    )


def seen(slots: int, slot: int | Array, new: int) -> Array:
    """(new, slots) integers: token i, written to `slot` + i, sees every pinned slot up to its own."""
    last = slot + jnp.arange(new)
    return (jnp.arange(slots)[None, :] <= last[:, None]).astype(jnp.int32)
