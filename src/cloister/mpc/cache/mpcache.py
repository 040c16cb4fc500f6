"""MPCache as a whole (Algorithm 3): static eviction once after the prefill, query-aware selection at every step.

    the prompt   | first | ............ middle ............ | last |
    after a look | first | important to all | to some | to none | last |        (IA, IC and UIA of §3)
    the cache      pinned    pinned           body      dropped   pinned, then room for generated tokens

At every step a query reads what is pinned and the clusters of the body that it is most similar to. What follows from
public numbers alone is in `sizes`; cross-layer sharing (§4.4, Algorithm 3 lines 13 to 17 and 23 to 27) is the caller's:
it hands a layer the eviction and the choice of its leader (cloister.mpc.cache.plan).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.full import empty_slots
from cloister.mpc.cache.ranking import best_rows, in_order
from cloister.mpc.cache.selection import attend_by_keys, attend_by_scores, choose_clusters
from cloister.mpc.cache.similarity import Similarity, Together, cluster_marks, similarities
from cloister.mpc.cache.sizes import Sizes
from cloister.mpc.cache.static import attention_received, in_runs, take


@dataclass(frozen=True)
class MPCache:
    sizes: Sizes
    new_tokens: int
    alpha: float = 0.6
    similarity: Similarity = "linear"
    together: Together = "sum"
    shuffled: bool = True
    by_scores: bool = True
    name: str = "mpcache"

    @property
    def window(self) -> int:
        return self.sizes.window

    @property
    def first_free(self) -> int:
        return self.sizes.first + self.sizes.always + self.sizes.last

    @property
    def evict_shuffles(self) -> tuple[int, ...]:
        sizes = self.sizes
        if not self.shuffled or not sizes.evicts:
            return ()
        return (sizes.runs, sizes.kept_runs) if sizes.needs_order else (sizes.runs,)

    @property
    def choose_shuffles(self) -> tuple[int, ...]:
        return self.sizes.candidates if self.shuffled else ()

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        """Lines 10 to 17: rows of runs that are important to all, then of those important to some, in their order."""
        sizes = self.sizes
        if not sizes.evicts:
            return None
        received = attention_received(prompt, softmax, offset)[:, sizes.middle]
        numbers = in_runs(received[..., None], sizes.granularity).sum(axis=-1)
        rows = best_rows(numbers, sizes.always_runs + sizes.kept_runs, shuffles.matrices[0] if self.shuffled else None)
        important, some = rows[:, : sizes.always_runs], rows[:, sizes.always_runs :]
        if sizes.needs_order:
            some = in_order(some, shuffles.matrices[1] if self.shuffled else None)
        return Eviction(jnp.concatenate([important, some], axis=1), None)

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        """Lines 18 and 19, and the marks of clusters at every level."""
        pinned_keys, keys = self._divided(prompt.keys, eviction)
        pinned_values, values = self._divided(prompt.values, eviction)
        marks = tuple(cluster_marks(keys, size, self.similarity, self.alpha) for size in self.sizes.clusters)
        return Cache(keys, values, marks, pinned_keys, pinned_values, None)

    def _divided(self, tokens: Array, eviction: Eviction | None) -> tuple[Array, Array]:
        """Tokens of the prompt as pinned ones, with room after them, and as the body."""
        sizes = self.sizes
        middle = tokens[:, sizes.middle]
        rows = None if eviction is None else eviction.rows
        kept = middle if rows is None else take(rows, middle, sizes.granularity)
        first, last = tokens[:, : sizes.first], tokens[:, tokens.shape[1] - sizes.last :]
        pinned = [first, kept[:, : sizes.always], last, empty_slots(tokens, self.new_tokens)]
        return jnp.concatenate(pinned, axis=1), kept[:, sizes.always :]

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Choice | None:
        """Lines 24 and 25."""
        similar = similarities(queries, cache.marks, self.similarity, self.together)
        shuffled = shuffles.matrices if self.shuffled else (None,) * len(similar)
        return choose_clusters(similar, self.sizes.counts, shuffled)

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        """Lines 28 to 30."""
        assert choice is not None
        attend = attend_by_scores if self.by_scores else attend_by_keys
        return attend(queries, cache, choice, softmax, offset, seen), cache
