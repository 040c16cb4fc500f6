"""InfLLM (Xiao et al., 2024): blocks of adjacent tokens, each known by the few of its tokens that got most attention;
at every step the blocks whose representatives score highest with the query. Nothing is dropped."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.chosen import ChosenCache
from cloister.mpc.cache.headwise import headwise
from cloister.mpc.cache.ranking import ranks
from cloister.mpc.cache.similarity import of_groups
from cloister.mpc.cache.static import attention_received

REPRESENTATIVES = 4


@dataclass(frozen=True)
class InfLLM(ChosenCache):
    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        received = attention_received(prompt, softmax, offset)[:, self.first : self.prompt_tokens - self.last]
        return Eviction(None, received)

    def marks(self, keys: Array, eviction: Eviction | None) -> Array:
        """The sum of each block's representatives: a query's similarity is the sum of its products with them."""
        assert eviction is not None and eviction.scores is not None
        groups, _, size = keys.shape
        blocks = eviction.scores.reshape(-1, self.block)
        represent = (ranks(blocks) < REPRESENTATIVES).astype(jnp.int32)
        return headwise(represent[:, None], keys.reshape(-1, self.block, size)).reshape(groups, -1, size)

    def similar(self, queries: Array, marks: Array) -> Array:
        return headwise(marks, jnp.swapaxes(of_groups(queries, marks.shape[0]), 1, 2))[..., 0]
