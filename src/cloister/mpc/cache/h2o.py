"""H2O (Zhang et al., 2023): half of what is kept are the last tokens, half those that got most attention so far, from
all queries; counted on while decoding, with one token forgotten for each generated one."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import weighted
from cloister.mpc.cache.base import Cache, PromptLayer, Softmax
from cloister.mpc.cache.forgetting import forget_lowest
from cloister.mpc.cache.kept import KeptCache
from cloister.mpc.cache.static import added_up, attention_received


@dataclass(frozen=True)
class H2O(KeptCache):
    counts_on = True

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        return attention_received(prompt, softmax, offset)

    def afterwards(self, cache: Cache, weights: Array, values: Array, softmax: Softmax, seen: Array) -> Cache:
        assert cache.scores is not None
        body, slots = cache.keys.shape[1], cache.pinned_keys.shape[1]
        received = added_up(softmax, weights, weighted(weights, values[..., -1:]), cache.keys.shape[0])
        counted = cache.scores + received[:, :body]
        # As tokens are generated, the last ones of the prompt cease to be among the last: they may be forgotten then.
        recent = jnp.arange(body) >= body - self.last + jnp.sum(seen[-1])
        protected = jnp.concatenate([recent.astype(jnp.int32), jnp.ones(slots, jnp.int32)])
        worth = jnp.concatenate([counted, jnp.zeros_like(received[:, body:])], axis=1)
        return forget_lowest(cache._replace(scores=counted), worth, protected, weights.shape[1])


def h2o(prompt_tokens: int, new_tokens: int, read: int, shuffled: bool) -> H2O:
    last = max(1, read // 2)
    return H2O(prompt_tokens, new_tokens, 0, read - last, last, window=prompt_tokens, shuffled=shuffled, name="h2o")
