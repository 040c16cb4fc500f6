"""What caches share. H query heads, G key-value heads, d head size, n new, T prompt tokens; shapes are public. A
missing token's values are zero, the last column too: it weighs nothing, without a mask."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax.numpy as jnp
from jax import Array, lax


class PromptLayer(NamedTuple):
    """One layer's prompt after the prefill: rotated keys, values with their last column, and the last queries."""

    queries: Array  # (H, W, d): those of the last W = method.window tokens (W >= 1), scaled by 1/sqrt(d) already
    keys: Array  # (G, T, d)
    values: Array  # (G, T, d + 1)


class Cache(NamedTuple):
    """One layer's cache. `body` is what may be selected from; `pinned` (first, recent, generated) is always read."""

    keys: Array  # (G, S, d)
    values: Array  # (G, S, d + 1)
    marks: Array | None  # what clusters are known by: (G, C, d)
    pinned_keys: Array  # (G, R, d): what of the prompt is always read, then room for generated tokens
    pinned_values: Array  # (G, R, d + 1)


Shuffles: TypeAlias = tuple[Array, ...]
"""Secret random permutation matrices, fresh for every use and head: (G, C, C) integers per size a method names."""


@dataclass(frozen=True)
class Softmax:
    """`weigh(scores, offset)` is exp(scores - offset), tokens last, `offset` secret, (H, 1, 1); `divide(sums)`: (…, d +
    1) → (…, d), by the last column."""

    weigh: Callable[[Array, Array], Array]
    divide: Callable[[Array], Array]


def write_slots(cache: Cache, slot: int | Array, keys: Array, values: Array) -> Cache:
    """The cache with new tokens' keys (G, n, d) and values (G, n, d + 1) in pinned slots from `slot` (public) on."""
    return cache._replace(
        pinned_keys=lax.dynamic_update_slice_in_dim(cache.pinned_keys, keys, slot, axis=1),
        pinned_values=lax.dynamic_update_slice_in_dim(cache.pinned_values, values, slot, axis=1),
    )


def seen_slots(slots: int, slot: int | Array, new: int) -> Array:
    """(new, slots) integers: token i, written to `slot` + i, sees every pinned slot up to its own."""
    last = slot + jnp.arange(new)
    return (jnp.arange(slots)[None, :] <= last[:, None]).astype(jnp.int32)
