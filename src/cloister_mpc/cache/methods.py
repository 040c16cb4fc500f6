"""The two ways a party keeps its cache. `FullCache` keeps and reads the whole prompt. `MPCache` is Algorithm 3: static
eviction once after the prefill, query-aware selection at every step.

    the prompt   | first | ............ middle ............ | last |
    after a look | first | important to all | to some | to none | last |        (IA, IC and UIA of §3)
    the cache      pinned    pinned           body      dropped   pinned, then room for generated tokens

At every step a query reads the pinned tokens and the clusters of the body that it is most similar to. Cross-layer
sharing (§4.4, Algorithm 3 lines 13 to 17 and 23 to 27) is the caller's: it hands a layer the eviction and the choice of
its leader (cloister_mpc.cache.plan).
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister_mpc.cache.attention import attention_received, in_runs, read_all, take, visible_to
from cloister_mpc.cache.base import Cache, Choice, Eviction, Method, PromptLayer, Shuffles, Softmax
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.cache.ranking import best_rows, in_order
from cloister_mpc.cache.selection import (
    attend_by_keys,
    attend_by_scores,
    choose_clusters,
    cluster_marks,
    similarities,
)


def empty_slots(like: Array, slots: int) -> Array:
    """(G, slots, …) of zeros: room that weighs nothing until it is written."""
    return jnp.zeros((like.shape[0], slots, like.shape[2]), like.dtype)


@dataclass(frozen=True)
class FullCache:
    new_tokens: int
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


@dataclass(frozen=True)
class Sizes:
    """Follow from public numbers alone. In tokens unless named otherwise; tuples have the coarse level first."""

    window: int
    first: int
    always: int  # of the middle, read at every step
    body: int  # of the middle, selected from
    last: int
    granularity: int
    middle: slice
    clusters: tuple[int, ...]  # tokens per cluster
    candidates: tuple[int, ...]  # clusters that each level chooses from
    counts: tuple[int, ...]  # clusters that each level passes on

    @property
    def evicts(self) -> bool:
        """Whether a look at the prompt is needed: something is dropped, or pinned by importance."""
        return self.always > 0 or self.body < self.middle_tokens

    @property
    def middle_tokens(self) -> int:
        return int(self.middle.stop) - int(self.middle.start)

    @property
    def runs(self) -> int:
        return self.middle_tokens // self.granularity

    @property
    def always_runs(self) -> int:
        return self.always // self.granularity

    @property
    def kept_runs(self) -> int:
        return self.body // self.granularity

    @property
    def needs_order(self) -> bool:
        """The eviction gives runs in any order; only clusters made of several runs need them adjacent again."""
        return self.granularity < self.clusters[0]

    @property
    def read(self) -> int:
        """Tokens of the prompt read at every step."""
        return self.first + self.always + self.counts[-1] * self.clusters[-1] + self.last


def sizes_of(plan: CachePlan, prompt_tokens: int) -> Sizes | None:
    """The sizes for a prompt; None where it is too short for anything to be worth selecting."""
    granularity, clusters = plan.granularity, plan.clusters
    coarse, fine = clusters[0], clusters[-1]
    read = max(round(plan.budget * prompt_tokens), plan.at_least)
    middle_tokens = (prompt_tokens - plan.pinned_first - plan.pinned_last) // granularity * granularity
    free = read - plan.pinned_first - plan.pinned_last
    # A secret top-k is a set: it cannot tell the most important ones.
    always = plan.always if plan.ranking == "shuffle" else 0.0
    always_tokens = round(free * always / granularity) * granularity
    count = (free - always_tokens) // fine
    unit = max(coarse, granularity)
    body = min(round(plan.static_keep * prompt_tokens), middle_tokens - always_tokens) // unit * unit
    if count < 1 or count * fine >= body:
        return None
    counts, candidates, available = [], [], body
    for size, ratio in zip(clusters, (*plan.ratios, None), strict=True):
        candidates.append(available // size)
        if ratio is None:
            counts.append(count)
        else:
            counts.append(min(max(round(candidates[-1] * ratio), -(-count * fine // size)), candidates[-1]))
            available = counts[-1] * size
    start = prompt_tokens - plan.pinned_last - middle_tokens
    return Sizes(
        window=max(1, min(prompt_tokens, round(plan.window * prompt_tokens))),
        first=start,
        always=always_tokens,
        body=body,
        last=plan.pinned_last,
        granularity=granularity,
        middle=slice(start, start + middle_tokens),
        clusters=clusters,
        candidates=tuple(candidates),
        counts=tuple(counts),
    )


@dataclass(frozen=True)
class MPCache:
    plan: CachePlan
    sizes: Sizes
    new_tokens: int

    @property
    def shuffled(self) -> bool:
        return self.plan.ranking == "shuffle"

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
        rows = best_rows(numbers, sizes.always_runs + sizes.kept_runs, shuffles[0] if self.shuffled else None)
        important, some = rows[:, : sizes.always_runs], rows[:, sizes.always_runs :]
        if sizes.needs_order:
            some = in_order(some, shuffles[1] if self.shuffled else None)
        return Eviction(jnp.concatenate([important, some], axis=1), None)

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        """Lines 18 and 19, and the marks of clusters at every level."""
        pinned_keys, keys = self._divided(prompt.keys, eviction)
        pinned_values, values = self._divided(prompt.values, eviction)
        marks = tuple(cluster_marks(keys, size, self.plan.similarity, self.plan.alpha) for size in self.sizes.clusters)
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
        similar = similarities(queries, cache.marks, self.plan.similarity, self.plan.together)
        shuffled = shuffles if self.shuffled else (None,) * len(similar)
        return choose_clusters(similar, self.sizes.counts, shuffled)

    def attend(
        self, queries: Array, cache: Cache, choice: Choice | None, softmax: Softmax, offset: Array, seen: Array
    ) -> tuple[Array, Cache]:
        """Lines 28 to 30."""
        assert choice is not None
        attend = attend_by_scores if self.plan.gather == "scores" else attend_by_keys
        return attend(queries, cache, choice, softmax, offset, seen), cache


def make_method(plan: CachePlan, prompt_tokens: int, new_tokens: int) -> Method:
    """The plan's method for a prompt of this bucket, with room for `new_tokens`. A short prompt is read whole."""
    if plan.method == "full" or plan.tokens_read(prompt_tokens) == prompt_tokens:
        return FullCache(new_tokens)
    sizes = sizes_of(plan, prompt_tokens)
    return FullCache(new_tokens) if sizes is None else MPCache(plan, sizes, new_tokens)
