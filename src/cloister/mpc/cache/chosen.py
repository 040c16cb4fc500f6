"""What methods have in common that drop nothing and select at every step: blocks of the middle of the prompt, known by
their marks, beside first and last tokens that are always read."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.full import empty_slots
from cloister.mpc.cache.selection import attend_by_keys, attend_by_scores, choose_clusters


@dataclass(frozen=True)
class ChosenCache:
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
