"""What static methods have in common: some first tokens, those that scored highest, and some last ones are kept, once
and for all, and read at every step. How tokens are scored is the one thing they differ in."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import read_all, visible_to
from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.full import empty_slots
from cloister.mpc.cache.ranking import best_rows
from cloister.mpc.cache.static import take


@dataclass(frozen=True)
class KeptCache:
    prompt_tokens: int
    new_tokens: int
    first: int
    heavy: int  # of the tokens between first and last: those that scored highest
    last: int
    window: int = 1
    shuffled: bool = True
    name: str = "streaming"
    first_free: int = 0
    choose_shuffles: tuple[int, ...] = ()
    counts_on = False

    @property
    def evict_shuffles(self) -> tuple[int, ...]:
        return (self.prompt_tokens - self.first - self.last,) if self.heavy and self.shuffled else ()

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        """(G, T): how much each token is worth keeping. Not asked where none is kept by its score."""
        raise NotImplementedError

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        if not self.heavy:
            return None
        scored = self.scored(prompt, softmax, offset)
        middle = scored[:, self.first : self.prompt_tokens - self.last]
        rows = best_rows(middle, self.heavy, shuffles.matrices[0] if self.shuffled else None)
        return Eviction(rows, self._kept(scored[..., None], rows)[..., 0] if self.counts_on else None)

    def _kept(self, tokens: Array, rows: Array | None) -> Array:
        end = self.prompt_tokens - self.last
        heavy = [] if rows is None else [take(rows, tokens[:, self.first : end])]
        return jnp.concatenate([tokens[:, : self.first], *heavy, tokens[:, end:]], axis=1)

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        rows = None if eviction is None else eviction.rows
        return Cache(
            keys=self._kept(prompt.keys, rows),
            values=self._kept(prompt.values, rows),
            marks=(),
            pinned_keys=empty_slots(prompt.keys, self.new_tokens),
            pinned_values=empty_slots(prompt.values, self.new_tokens),
            scores=None if eviction is None else eviction.scores,
        )

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        return None

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        keys = jnp.concatenate([cache.keys, cache.pinned_keys], axis=1)
        values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
        visible = visible_to(queries.shape[1], cache.keys.shape[1], seen)
        out, weights = read_all(queries, keys, values, softmax, offset, visible)
        return out, self.afterwards(cache, weights, values, softmax, seen)

    def afterwards(self, cache: Cache, weights: Array, values: Array, softmax: Softmax, seen: Array) -> Cache:
        """What a method counts or forgets once a step's weights (H, n, S + R) are known."""
        return cache
