"""Methods that drop nothing and select at every step: blocks of the middle of the prompt, known by their marks, beside
first and last tokens that are always read."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax

from cloister.mpc.cache.attention import attention_received, headwise
from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.methods import empty_slots
from cloister.mpc.cache.ranking import ranks
from cloister.mpc.cache.selection import attend_by_keys, attend_by_scores, choose_clusters, of_groups

REPRESENTATIVES = 4
EPSILON = 2.0**-10
"""Below any key's squared length, and not lost in fixed point: padding has no direction."""


@dataclass(frozen=True)
class SelectingCache:
    prompt_tokens: int
    new_tokens: int
    first: int
    last: int
    block: int  # tokens per block; the middle is a whole number of them
    count: int  # blocks read per step
    shuffled: bool = True
    by_scores: bool = False
    window: int = 1
    name: str = "chosen"
    evict_shuffles: tuple[int, ...] = ()

    @property
    def first_free(self) -> int:
        return self.first + self.last

    @property
    def choose_shuffles(self) -> tuple[int, ...]:
        return ((self.prompt_tokens - self.first - self.last) // self.block,) if self.shuffled else ()

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return None

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        end = self.prompt_tokens - self.last

        def pinned(tokens: Array) -> Array:
            room = empty_slots(tokens, self.new_tokens)
            return jnp.concatenate([tokens[:, : self.first], tokens[:, end:], room], axis=1)

        keys, values = prompt.keys[:, self.first : end], prompt.values[:, self.first : end]
        marks = self.marks(keys, eviction)
        return Cache(keys, values, (marks,), pinned(prompt.keys), pinned(prompt.values), None)

    def marks(self, keys: Array, eviction: Eviction | None) -> Array:
        """(G, C, d): what the blocks of the body are known by."""
        raise NotImplementedError

    def similar(self, queries: Array, marks: Array) -> Array:
        """(G, C): how alike the queries (H, n, d) and each block are."""
        raise NotImplementedError

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        similar = self.similar(queries, cache.marks[0])
        return choose_clusters((similar,), (self.count,), shuffles.matrices if self.shuffled else (None,))

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        assert choice is not None
        attend = attend_by_scores if self.by_scores else attend_by_keys
        return attend(queries, cache, choice, softmax, offset, seen), cache


@dataclass(frozen=True)
class LongCache(SelectingCache):
    """Liu et al., 2024: at every step, the single tokens whose keys have the highest cosine with the query."""

    def marks(self, keys: Array, eviction: Eviction | None) -> Array:
        return _directions(keys)

    def similar(self, queries: Array, marks: Array) -> Array:
        return headwise(marks, jnp.swapaxes(of_groups(_directions(queries), marks.shape[0]), 1, 2))[..., 0]


@dataclass(frozen=True)
class InfLLM(SelectingCache):
    """Xiao et al., 2024: blocks of adjacent tokens, each known by the few of its tokens that got most attention; at
    every step the blocks whose representatives score highest with the query."""

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


def _directions(vectors: Array) -> Array:
    return vectors * lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + EPSILON)
