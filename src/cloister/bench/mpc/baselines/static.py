"""Static methods: some first tokens, those that scored highest, and some last ones are kept after the prefill, once
and for all, and read at every step. They differ in how tokens are scored; H2O and TOVA also forget while decoding."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.attention import added_up, attention_received, read_all, take, visible_to, weighted
from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, Softmax
from cloister.mpc.cache.methods import empty_slots
from cloister.mpc.cache.ranking import best_rows, gathered_rows

SNAPKV_WINDOW = 32
SNAPKV_KERNEL = 5
NEVER = 2.0**14
"""Above any attention a token can gather in a generation, within fixed point."""


@dataclass(frozen=True)
class KeptCache:
    """With `heavy` 0 this is StreamingLLM (Xiao et al., 2023): the first tokens, sinks of attention, and the last."""

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


@dataclass(frozen=True)
class SnapKV(KeptCache):
    """Li et al., 2024: the last queries' attention, smoothed over neighbours, decides what is kept beside them."""

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        received = attention_received(prompt, softmax, offset)
        before = received[:, : self.prompt_tokens - self.last]
        return jnp.concatenate([_smoothed(before), received[:, self.prompt_tokens - self.last :]], axis=1)


@dataclass(frozen=True)
class H2O(KeptCache):
    """Zhang et al., 2023: half of what is kept are the last tokens, half those that got most attention so far, from
    all queries; counted on while decoding, with one token forgotten for each generated one."""

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
        return _forget_lowest(cache._replace(scores=counted), worth, protected, weights.shape[1])


@dataclass(frozen=True)
class TOVA(KeptCache):
    """Oren et al., 2024: the last query's attention, averaged over all heads, decides; so it does at every step, when
    one token is forgotten for each generated one."""

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        return _of_all_heads(attention_received(prompt, softmax, offset))

    def afterwards(self, cache: Cache, weights: Array, values: Array, softmax: Softmax, seen: Array) -> Cache:
        last, body = weights[:, -1:], cache.keys.shape[1]
        received = added_up(softmax, last, weighted(last, values[..., -1:]), cache.keys.shape[0])
        written = seen[-1]
        newest = written * (jnp.cumsum(written) > jnp.sum(written) - weights.shape[1])
        slots = jnp.maximum(1 - written, newest).astype(jnp.int32)
        protected = jnp.concatenate([jnp.zeros(body, jnp.int32), slots])
        return _forget_lowest(cache, _of_all_heads(received), protected, weights.shape[1])


def static_method(name: str, prompt_tokens: int, new_tokens: int, read: int, shuffled: bool, sinks: int) -> KeptCache:
    """The method of this name, which reads `read` tokens of the prompt at every step."""
    if name == "streaming":
        return KeptCache(prompt_tokens, new_tokens, sinks, heavy=0, last=max(read - sinks, 1))
    near = max(1, min(SNAPKV_WINDOW, read // 2))
    kinds: dict[str, tuple[type[KeptCache], int, int]] = {
        "snapkv": (SnapKV, near, near),
        "h2o": (H2O, max(1, read // 2), prompt_tokens),
        "tova": (TOVA, 1, 1),
    }
    kind, last, window = kinds[name]
    return kind(prompt_tokens, new_tokens, 0, read - last, last, window=window, shuffled=shuffled, name=name)


def _smoothed(received: Array) -> Array:
    """(G, T): the sum over a token and its neighbours; zeros beyond the ends."""
    half, tokens = SNAPKV_KERNEL // 2, received.shape[1]
    wide = jnp.pad(received, ((0, 0), (half, half)))
    return sum((wide[:, shift : shift + tokens] for shift in range(1, SNAPKV_KERNEL)), wide[:, :tokens])


def _of_all_heads(received: Array) -> Array:
    """The sum over heads, for each of them: (G, t)."""
    return jnp.broadcast_to(jnp.sum(received, axis=0, keepdims=True), received.shape)


def _forget_lowest(cache: Cache, worth: Array, protected: Array, count: int) -> Cache:
    """The cache without the `count` tokens of lowest `worth` (G, S + R); `protected` ones (S + R), public, stay.

    Their values become zero, so that they weigh nothing from then on. Which ones stays secret, so no cache shrinks.
    """
    values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
    worth = worth * (1 - protected) + protected * NEVER
    worth = worth + (1 - values[..., -1]) * NEVER
    lowest = jnp.sum(gathered_rows(-worth, count), axis=1)
    left = values * (1 - lowest)[..., None]
    body = cache.values.shape[1]
    return cache._replace(values=left[:, :body], pinned_values=left[:, body:])
