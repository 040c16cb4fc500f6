"""A party's two caches. `FullCache` reads the whole prompt. `MPCache` is Algorithm 3: static eviction (§3) once, then
query-aware clusters (§4.3) at every step. Unlike the paper it gathers scores, not keys and values."""

from dataclasses import dataclass
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from cloister_mpc.cache.attention import (
    attention_received,
    fine_scores,
    headwise,
    in_runs,
    scores,
    shown,
    take,
    visible_to,
    weighted,
)
from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles, Softmax
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.cache.ranking import in_order, shuffled_rows
from cloister_mpc.functions.ring import integers, numbers, settled


def empty_slots(like: Array, slots: int) -> Array:
    """(G, slots, …) of zeros: room that weighs nothing until it is written."""
    return jnp.zeros((like.shape[0], slots, like.shape[2]), like.dtype)


@dataclass(frozen=True)
class FullCache:
    """`new_tokens`: pinned slots from `first_free`. An `evict` or `choose` uses up its `…_shuffles`, (G, C, C) each."""

    new_tokens: int
    window: int = 1  # of the prompt's last queries, that `evict` looks at: at least 1, at most T
    first_free: int = 0
    evict_shuffles: tuple[int, ...] = ()
    choose_shuffles: tuple[int, ...] = ()

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Array | None:
        """What is kept of the prompt (§4.2), as (G, k, U) one-hot rows over runs of adjacent tokens; None: all is."""

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        return Cache(
            keys=prompt.keys,
            values=prompt.values,
            marks=None,
            pinned_keys=empty_slots(prompt.keys, self.new_tokens),
            pinned_values=empty_slots(prompt.values, self.new_tokens),
        )

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Array | None:
        """Query-aware selection (§4.3), one for all of queries (H, n, d): (G, k, C) one-hot rows over clusters."""

    def attend(
        self, queries: Array, cache: Cache, choice: Array | None, softmax: Softmax, offset: Array, seen: Array
    ) -> Array:
        """(H, n, d): attention over what was chosen and is pinned. `seen`, public (n, R): 1 where i may see a slot."""
        keys = jnp.concatenate([cache.keys, cache.pinned_keys], axis=1)
        values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
        visible = visible_to(queries.shape[1], cache.keys.shape[1], seen)
        weights = shown(softmax.weigh(scores(queries, keys), offset), visible)
        return softmax.divide(weighted(weights, values))


@dataclass(frozen=True)
class Sizes:
    """Follow from public numbers alone. In tokens unless named otherwise."""

    window: int
    first: int
    always: int  # of the middle, read at every step
    body: int  # of the middle, selected from
    last: int
    granularity: int
    middle: slice
    cluster: int
    count: int  # clusters that a step reads

    @property
    def evicts(self) -> bool:
        """Whether a look at the prompt is needed: something is dropped, or pinned by importance."""
        return self.always > 0 or self.body < self.middle_tokens

    @property
    def middle_tokens(self) -> int:
        return int(self.middle.stop) - int(self.middle.start)

    @property
    def candidates(self) -> int:
        return self.body // self.cluster

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
        return self.granularity < self.cluster

    @property
    def read(self) -> int:
        return self.first + self.always + self.count * self.cluster + self.last


def sizes_of(plan: CachePlan, prompt_tokens: int) -> Sizes | None:
    """The sizes for a prompt; None where it is too short for anything to be worth selecting."""
    granularity, cluster = plan.granularity, plan.cluster
    middle_tokens = (prompt_tokens - plan.pinned_first - plan.pinned_last) // granularity * granularity
    free = max(round(plan.budget * prompt_tokens), plan.at_least) - plan.pinned_first - plan.pinned_last
    always = round(free * plan.always / granularity) * granularity
    count, unit = (free - always) // cluster, max(cluster, granularity)
    body = min(round(plan.static_keep * prompt_tokens), middle_tokens - always) // unit * unit
    if count < 1 or count * cluster >= body:
        return None
    start = prompt_tokens - plan.pinned_last - middle_tokens
    return Sizes(
        window=max(1, min(prompt_tokens, round(plan.window * prompt_tokens))),
        first=start,
        always=always,
        body=body,
        last=plan.pinned_last,
        granularity=granularity,
        middle=slice(start, start + middle_tokens),
        cluster=cluster,
        count=count,
    )


@dataclass(frozen=True)
class MPCache:
    sizes: Sizes
    new_tokens: int

    @property
    def window(self) -> int:
        return self.sizes.window

    @property
    def first_free(self) -> int:
        return self.sizes.first + self.sizes.always + self.sizes.last

    @property
    def evict_shuffles(self) -> tuple[int, ...]:
        sizes = self.sizes
        if not sizes.evicts:
            return ()
        return (sizes.runs, sizes.kept_runs) if sizes.needs_order else (sizes.runs,)

    @property
    def choose_shuffles(self) -> tuple[int, ...]:
        return (self.sizes.candidates,)

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Array | None:
        """Lines 10 to 17: rows of runs that are important to all, then of those important to some, in their order."""
        sizes = self.sizes
        if not sizes.evicts:
            return None
        received = attention_received(prompt, softmax, offset)[:, sizes.middle]
        by_run = in_runs(received[..., None], sizes.granularity).sum(axis=-1)
        rows = shuffled_rows(by_run, shuffles[0], sizes.always_runs + sizes.kept_runs)
        important, some = rows[:, : sizes.always_runs], rows[:, sizes.always_runs :]
        if sizes.needs_order:
            some = in_order(some, shuffles[1])
        return jnp.concatenate([important, some], axis=1)

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        """Lines 18 and 19. A cluster's mark is its mean key (Figure 7)."""
        pinned_keys, keys = self._divided(prompt.keys, eviction)
        pinned_values, values = self._divided(prompt.values, eviction)
        clustered = keys.reshape(keys.shape[0], -1, self.sizes.cluster, keys.shape[-1])
        marks = jnp.sum(clustered, axis=2) * (1 / self.sizes.cluster)
        return Cache(keys, values, marks, pinned_keys, pinned_values)

    def _divided(self, tokens: Array, eviction: Array | None) -> tuple[Array, Array]:
        sizes = self.sizes
        middle = tokens[:, sizes.middle]
        kept = middle if eviction is None else take(eviction, middle, sizes.granularity)
        first, last = tokens[:, : sizes.first], tokens[:, tokens.shape[1] - sizes.last :]
        pinned = [first, kept[:, : sizes.always], last, empty_slots(tokens, self.new_tokens)]
        return jnp.concatenate(pinned, axis=1), kept[:, sizes.always :]

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Array | None:
        """Lines 24 and 25."""
        assert cache.marks is not None
        return shuffled_rows(similarities(queries, cache.marks), shuffles[0], self.sizes.count)

    def attend(
        self, queries: Array, cache: Cache, choice: Array | None, softmax: Softmax, offset: Array, seen: Array
    ) -> Array:
        """Lines 28 to 30, over chosen clusters and pinned tokens."""
        assert choice is not None
        heads, new, _ = queries.shape
        groups, chosen, clusters = choice.shape
        body = cache.keys.shape[1]
        every = fine_scores(queries, jnp.concatenate([cache.keys, cache.pinned_keys], axis=1))
        by_cluster = every[..., :body].reshape(groups, -1, clusters, body // clusters).transpose(0, 2, 1, 3)
        taken = headwise(choice, by_cluster.reshape(groups, clusters, -1))
        read = taken.reshape(groups, chosen, -1, body // clusters).transpose(0, 2, 1, 3).reshape(heads, new, -1)
        visible = visible_to(new, read.shape[-1], seen)
        asked = settled(jnp.concatenate([read, every[..., body:]], axis=-1))
        weights = shown(softmax.weigh(asked, offset), visible)
        given = weights[..., : read.shape[-1]].reshape(groups, -1, chosen, body // clusters).transpose(0, 2, 1, 3)
        spread = headwise(jnp.swapaxes(choice, 1, 2), given.reshape(groups, chosen, -1))
        placed = spread.reshape(groups, clusters, -1, body // clusters).transpose(0, 2, 1, 3).reshape(heads, new, body)
        values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
        return softmax.divide(weighted(jnp.concatenate([placed, weights[..., read.shape[-1] :]], axis=-1), values))


Method: TypeAlias = FullCache | MPCache


def similarities(queries: Array, marks: Array) -> Array:
    """(H, n, d), (G, C, d) → (G, C), a group's queries summed by a public product: a sum would share a zero first."""
    shared = integers(queries).reshape(marks.shape[0], -1, queries.shape[-1])
    asking = numbers(jnp.matmul(jnp.ones((1, shared.shape[1]), shared.dtype), shared))
    return headwise(marks, jnp.swapaxes(asking, 1, 2))[..., 0]


def make_method(plan: CachePlan, prompt_tokens: int, new_tokens: int) -> Method:
    """The plan's method for a prompt of this bucket, with room for `new_tokens`. A short prompt is read whole."""
    if plan.method == "full" or plan.tokens_read(prompt_tokens) == prompt_tokens:
        return FullCache(new_tokens)
    sizes = sizes_of(plan, prompt_tokens)
    return FullCache(new_tokens) if sizes is None else MPCache(sizes, new_tokens)
