"""What MPCache is compared with: other ways of keeping the KV cache, with the papers' secret top-k. A served party
refuses a plan that names one of them."""

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array, lax
from msgspec.structs import replace

from cloister_bench.mpc.plan import BaselinePlan
from cloister_mpc.cache.attention import added_up, attention_received, headwise, take, weighted
from cloister_mpc.cache.base import Cache, Eviction, PromptLayer, Shuffles, Softmax
from cloister_mpc.cache.methods import FullCache, Method, MPCache, make_method, similarities, sizes_of
from cloister_mpc.cache.plan import CachePlan

SNAPKV_WINDOW = 32
SNAPKV_KERNEL = 5
NEVER = 2.0**14  # above any attention a token can gather in a generation, within fixed point


def gathered_rows(numbers: Array, k: int) -> Array:
    """(G, C) → (G, k, C): secret top-k indices, each made one-hot by comparing with every position (Algorithm 2)."""
    return (lax.top_k(numbers, k)[1][..., None] == jnp.arange(numbers.shape[-1])).astype(jnp.int32)


@dataclass(frozen=True, kw_only=True)
class KeptCache(FullCache):
    """With `heavy` 0 this is StreamingLLM (Xiao et al., 2023): the first tokens, sinks of attention, and the last."""

    first: int
    heavy: int  # of the tokens between first and last: those that scored highest
    last: int
    counts_on = False

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        """(G, T): how much each token is worth keeping. Not asked where none is kept by its score."""
        raise NotImplementedError

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        if not self.heavy:
            return None
        scored = self.scored(prompt, softmax, offset)
        middle = scored[:, self.first : scored.shape[1] - self.last]
        rows = gathered_rows(middle, self.heavy)
        return Eviction(rows, self._kept(scored[..., None], rows)[..., 0] if self.counts_on else None)

    def _kept(self, tokens: Array, rows: Array | None) -> Array:
        end = tokens.shape[1] - self.last
        heavy = [] if rows is None else [take(rows, tokens[:, self.first : end])]
        return jnp.concatenate([tokens[:, : self.first], *heavy, tokens[:, end:]], axis=1)

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        rows, scores = (None, None) if eviction is None else eviction
        kept = prompt._replace(keys=self._kept(prompt.keys, rows), values=self._kept(prompt.values, rows))
        return super().build(kept, None)._replace(scores=scores)


class SnapKV(KeptCache):
    """Li et al., 2024: the last queries' attention, smoothed over neighbours, decides what is kept beside them."""

    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        received = attention_received(prompt, softmax, offset)
        near = received.shape[1] - self.last
        return jnp.concatenate([_smoothed(received[:, :near]), received[:, near:]], axis=1)


class ForgettingCache(KeptCache):
    """It changes from token to token, in `afterwards`."""


class H2O(ForgettingCache):
    """Zhang et al., 2023: half of what is kept are the last tokens, half those with most attention so far."""

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


class TOVA(ForgettingCache):
    """Oren et al., 2024: the last query's attention, averaged over heads, decides after prefill and at each step."""

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


def static_method(name: str, prompt_tokens: int, new_tokens: int, read: int, sinks: int) -> KeptCache:
    if name == "streaming":
        return KeptCache(new_tokens, first=sinks, heavy=0, last=max(read - sinks, 1))
    near = max(1, min(SNAPKV_WINDOW, read // 2))
    kinds: dict[str, tuple[type[KeptCache], int, int]] = {
        "snapkv": (SnapKV, near, near),
        "h2o": (H2O, max(1, read // 2), prompt_tokens),
        "tova": (TOVA, 1, 1),
    }
    kind, last, window = kinds[name]
    return kind(new_tokens, window=window, first=0, heavy=read - last, last=last)


def _smoothed(received: Array) -> Array:
    """(G, T): the sum over a token and its neighbours; zeros beyond the ends."""
    half, tokens = SNAPKV_KERNEL // 2, received.shape[1]
    wide = jnp.pad(received, ((0, 0), (half, half)))
    return sum((wide[:, shift : shift + tokens] for shift in range(1, SNAPKV_KERNEL)), wide[:, :tokens])


def _of_all_heads(received: Array) -> Array:
    return jnp.broadcast_to(jnp.sum(received, axis=0, keepdims=True), received.shape)


def _forget_lowest(cache: Cache, worth: Array, protected: Array, count: int) -> Cache:
    """Zeroes the values of the `count` tokens of lowest `worth` (G, S + R) that are not `protected`; keeps the size."""
    values = jnp.concatenate([cache.values, cache.pinned_values], axis=1)
    worth = worth * (1 - protected) + protected * NEVER
    worth = worth + (1 - values[..., -1]) * NEVER
    lowest = jnp.sum(gathered_rows(-worth, count), axis=1)
    left = values * (1 - lowest)[..., None]
    body = cache.values.shape[1]
    return cache._replace(values=left[:, :body], pinned_values=left[:, body:])


REPRESENTATIVES = 4
EPSILON = 2.0**-10  # below any key's squared length, and not lost in fixed point: padding has no direction


class SelectingCache(MPCache):
    choose_shuffles = ()

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Array | None:
        assert cache.marks is not None
        return gathered_rows(similarities(queries, cache.marks), self.sizes.count)


class LongCache(SelectingCache):
    """Liu et al., 2024: at every step, the single tokens whose keys have the highest cosine with the query."""

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        cache = super().build(prompt, eviction)
        return cache._replace(marks=_directions(cache.keys))

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Array | None:
        return super().choose(_directions(queries), cache, shuffles)


class InfLLM(SelectingCache):
    """Xiao et al., 2024: blocks of adjacent tokens whose most attended representatives score highest with the query."""

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return Eviction(None, attention_received(prompt, softmax, offset)[:, self.sizes.middle])

    def build(self, prompt: PromptLayer, eviction: Eviction | None) -> Cache:
        """A block's mark is its representatives' sum: a query's similarity is the sum of its products with them."""
        assert eviction is not None and eviction.scores is not None
        cache = super().build(prompt, eviction)
        block, (groups, _, size) = self.sizes.cluster, cache.keys.shape
        represent = gathered_rows(eviction.scores.reshape(-1, block), REPRESENTATIVES).sum(axis=1)
        marks = headwise(represent[:, None], cache.keys.reshape(-1, block, size)).reshape(groups, -1, size)
        return cache._replace(marks=marks)


def method_of(plan: CachePlan, prompt_tokens: int, new_tokens: int) -> Method:
    if not isinstance(plan, BaselinePlan):
        return make_method(plan, prompt_tokens, new_tokens)
    read = plan.tokens_read(prompt_tokens)
    if read == prompt_tokens:
        return FullCache(new_tokens)
    if plan.method in ("longcache", "infllm"):
        return _selecting_method(plan, prompt_tokens, new_tokens) or FullCache(new_tokens)
    sinks = min(plan.pinned_first, read - 1)
    return static_method(plan.method, prompt_tokens, new_tokens, read, sinks)


def _selecting_method(plan: BaselinePlan, prompt_tokens: int, new_tokens: int) -> MPCache | None:
    """None where the prompt is too short."""
    kind, block = (LongCache, 1) if plan.method == "longcache" else (InfLLM, plan.cluster)
    sizes = sizes_of(replace(plan, static_keep=1.0, always=0.0, granularity=block, cluster=block), prompt_tokens)
    return None if sizes is None else kind(sizes, new_tokens)


def _directions(vectors: Array) -> Array:
    return vectors * lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + EPSILON)
