"""What every way of keeping the KV cache has in common. H query heads, G key-value heads (H = G x group), d head
size, n new tokens in a pass, T prompt tokens. Shapes are public. Tokens that are not there have zero values and a
zero in the last column of values: the softmax comes out of one product, they weigh nothing, and no mask is computed."""

from typing import NamedTuple, Protocol, TypeAlias

import jax.numpy as jnp
from jax import Array, lax


class PromptLayer(NamedTuple):
    """One layer's prompt after the prefill: rotated keys, values with their last column, and the last queries."""

    queries: Array  # (H, W, d): those of the last W = method.window tokens (W >= 1), scaled by 1/sqrt(d) already
    keys: Array  # (G, T, d)
    values: Array  # (G, T, d + 1)


class Eviction(NamedTuple):
    """What a look at the prompt keeps of it, as one-hot rows over U runs of adjacent tokens."""

    rows: Array | None  # (G, k, U) integers, over what of the prompt can be dropped at all
    scores: Array | None  # (G, …) attention that the kept tokens received, for methods that need it later


class Cache(NamedTuple):
    """One layer's cache. `body` is what may be selected from; `pinned` (first, recent, generated) is always read."""

    keys: Array  # (G, S, d)
    values: Array  # (G, S, d + 1)
    marks: Array | None  # what clusters are known by: (G, C, d)
    pinned_keys: Array  # (G, R, d): what of the prompt is always read, then room for generated tokens
    pinned_values: Array  # (G, R, d + 1)
    scores: Array | None  # (G, S) attention that the body's tokens received so far, for methods that need it


class Choice(NamedTuple):
    """Which clusters of the body a step reads."""

    rows: Array  # (G, k, C) integers, one-hot


Shuffles: TypeAlias = tuple[Array, ...]
"""Secret random permutation matrices, fresh for every use and head: (G, C, C) integers per size a method names."""


class Softmax(Protocol):
    """How scores become weights, and weighted sums answers (cloister_mpc.functions)."""

    def weigh(self, scores: Array, offset: Array) -> Array:
        """exp(scores - offset); tokens along the last axis. `offset` is secret, calibrated per head: (H, 1, 1)."""

    def divide(self, sums: Array) -> Array:
        """(…, d + 1) → (…, d): all columns divided by the last."""


class Method(Protocol):
    """One way of keeping the cache. Static facts are attributes, fixed before tracing."""

    @property
    def window(self) -> int:
        """How many of the prompt's last queries `evict` looks at (at least 1, at most T)."""

    @property
    def first_free(self) -> int:
        """The pinned slot of the first generated token; there is room for the plan's new tokens from there on."""

    @property
    def evict_shuffles(self) -> tuple[int, ...]:
        """Sizes of the permutations `evict` uses up: one (G, C, C) each."""

    @property
    def choose_shuffles(self) -> tuple[int, ...]:
        """Sizes of the permutations `choose` uses up, at every call."""

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        """What is kept of the prompt (§4.2); None where all is, or where what is kept is known beforehand."""

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        """The cache after the prefill, with its clusters' marks (§4.3) where the method has them."""

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        """Query-aware selection (§4.3), one for all of queries (H, n, d); None where a method reads all it keeps."""

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        """(H, n, d): attention over what was chosen and what is pinned. `seen`, public (n, R): 1 where token i may
        see a slot."""


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
