"""The whole prompt is kept and read at every step."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import read_all, visible_to
from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax


def empty_slots(like: Array, slots: int) -> Array:
    """(G, slots, …) of zeros: room that weighs nothing until it is written."""
    return jnp.zeros((like.shape[0], slots, like.shape[2]), like.dtype)


@dataclass(frozen=True)
class FullCache:
    new_tokens: int
    name: str = "full"
    window: int = 1
    first_free: int = 0
    evict_shuffles: tuple[int, ...] = ()
    choose_shuffles: tuple[int, ...] = ()

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return None

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        return Cache(
            keys=prompt.keys,
            values=prompt.values,
            marks=(),
            pinned_keys=empty_slots(prompt.keys, self.new_tokens),
            pinned_values=empty_slots(prompt.values, self.new_tokens),
            scores=None,
        )

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        return None

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        keys = jnp.concatenate([cache.keys, cache.pinned_keys], axis=1)
        values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
        visible = visible_to(queries.shape[1], cache.keys.shape[1], seen)
        out, _ = read_all(queries, keys, values, softmax, offset, visible)
        return out, cache
