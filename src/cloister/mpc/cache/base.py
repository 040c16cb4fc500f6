"""What every way of keeping the KV cache has in common.

Shapes are static and known to all; contents are secret. Tokens that are not there (padding of a prompt, slots not yet
written) have zero values *and* a zero in the values' last column, so that numerator and denominator of the softmax come
out of one product and such tokens weigh nothing, whatever their score. No mask is ever computed.

    H query heads, G key-value heads (H = G x group), d head size, n new tokens in one pass, T prompt tokens (a bucket)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from jax import Array


class PromptLayer(NamedTuple):
    """One layer's prompt after the prefill: rotated keys, values with their last column, and the last queries."""

    queries: Array  # (H, W, d): those of the last W tokens, 20% of the prompt (§4.2), not scaled by 1/sqrt(d)
    keys: Array  # (G, T, d)
    values: Array  # (G, T, d + 1)


class Cache(NamedTuple):
    """One layer's cache. `body` is what may be selected from; `pinned` (first, recent, generated) is always read."""

    keys: Array  # (G, S, d)
    values: Array  # (G, S, d + 1)
    marks: tuple[
        Array, ...
    ]  # one per cluster of the body, coarse level first: (G, C, d) each; may be ()
    pinned_keys: Array  # (G, R, d): first tokens of the prompt, its last ones, then room for generated ones
    pinned_values: Array  # (G, R, d + 1)
    scores: Array  # (G, S + R) attention each token has had so far, for methods that need it; else (G, 0)


class Choice(NamedTuple):
    """Which clusters a query reads: one-hot rows, coarse level first; level 2 selects among the rows of level 1."""

    rows: tuple[Array, ...]  # (G, k, C) each, integers


class Shuffles(NamedTuple):
    """Secret random permutation matrices, fresh for every use, dealt by the client: (G, C, C) integers per level."""

    matrices: tuple[Array, ...]


class Softmax(Protocol):
    """How scores become weights, and weighted sums answers (cloister.mpc.functions)."""

    def weigh(self, scores: Array, offset: Array) -> Array:
        """exp(scores - offset), elementwise; `offset` broadcasts and is secret (calibrated per query head)."""
        ...

    def divide(self, sums: Array) -> Array:
        """(…, d + 1) → (…, d): all columns divided by the last."""
        ...


class Method(Protocol):
    """One way of keeping the cache. Static facts (budget, sizes, switches) are attributes, fixed before tracing."""

    name: str

    def build(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Cache:
        """The cache after the prefill: static eviction (§4.2) and clusters' marks (§4.3), where the method has them."""
        ...

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        """Query-aware selection (§4.3) for queries (H, n, d); None where the method reads everything it keeps."""
        ...

    def attend(self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array) -> Array:
        """Attention of queries (H, n, d) over what was chosen and what is pinned: (H, n, d).

        The new tokens' own keys and values are in `cache.pinned_*` already, causal among themselves (`n` > 1 occurs
        when drafts are verified: token i must not see i + 1…, which the method asks of `causal`).
        """
        ...

    def evict(self, queries: Array, cache: Cache, softmax: Softmax, offset: Array) -> Cache:
        """After a step: what methods forget while decoding (H2O, TOVA); others return the cache as it is."""
        ...


Reveal = Callable[[Array], Array]
