"""TOVA (Oren et al., 2024): the last query's attention, averaged over all heads, decides; so it does at every step,
when one token is forgotten for each generated one."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import weighted
from cloister.mpc.cache.base import Cache, PromptLayer, Softmax
from cloister.mpc.cache.forgetting import forget_lowest
from cloister.mpc.cache.kept import KeptCache
from cloister.mpc.cache.static import added_up, attention_received


def of_all_heads(received: Array) -> Array:
    """The sum over heads, for each of them: (G, t)."""
    return jnp.broadcast_to(jnp.sum(received, axis=0, keepdims=True), received.shape)


@dataclass(frozen=True)
class TOVA(KeptCache):
    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        return of_all_heads(attention_received(prompt, softmax, offset))

    def afterwards(self, cache: Cache, weights: Array, values: Array, softmax: Softmax, seen: Array) -> Cache:
        last, body = weights[:, -1:], cache.keys.shape[1]
        received = added_up(softmax, last, weighted(last, values[..., -1:]), cache.keys.shape[0])
        written = seen[-1]
        newest = written * (jnp.cumsum(written) > jnp.sum(written) - weights.shape[1])
        slots = jnp.maximum(1 - written, newest).astype(jnp.int32)
        protected = jnp.concatenate([jnp.zeros(body, jnp.int32), slots])
        return forget_lowest(cache, of_all_heads(received), protected, weights.shape[1])


def tova(prompt_tokens: int, new_tokens: int, read: int, shuffled: bool) -> TOVA:
    return TOVA(prompt_tokens, new_tokens, 0, read - 1, 1, window=1, shuffled=shuffled, name="tova")
