"""What MPCache's quality is compared with, on plain numbers alone: other choices of the tokens that a step reads. A
token that is not read keeps its place, with a zero as its value (last column too): it weighs nothing."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from cloister_mpc.cache.attention import added_up, attention_received, scores, visible_to, weighted
from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles, Softmax
from cloister_mpc.cache.methods import FullCache, Method, make_method, similarities
from cloister_mpc.cache.plan import CachePlan

BASELINES = ("longcache", "infllm", "h2o", "snapkv", "streaming")
SNAPKV_WINDOW, SNAPKV_KERNEL = 32, 5
REPRESENTATIVES = 4
NEVER = 1e9  # above any attention that a token can gather


def top(numbers: Array, k: int) -> Array:
    """(…, C) → the same shape: 1 for the k largest of each row, else 0."""
    return jax.nn.one_hot(lax.top_k(numbers, k)[1], numbers.shape[-1], dtype=jnp.int32).sum(axis=-2)


@dataclass(frozen=True)
class Baseline(FullCache):
    """Reads the prompt's first and last tokens, and `between` of those in the middle. With none of these it is
    StreamingLLM (Xiao et al., 2023): the first tokens are sinks of attention."""

    first: int = 0
    last: int = 0
    between: int = 0
    block: int = 1  # tokens of the middle that are chosen together

    def evict(self, prompt: PromptLayer, softmax: Softmax, offset: Array, shuffles: Shuffles) -> Array | None:
        """(G, T): the attention that each token received, of which `build` chooses."""
        return attention_received(prompt, softmax, offset)

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        assert eviction is not None
        kept = self.with_ends(top(self.middle(self.worth(eviction)), self.between))
        return super().build(prompt._replace(values=prompt.values * kept[..., None]), None)

    def worth(self, received: Array) -> Array:
        return received

    def middle(self, tokens: Array) -> Array:
        return tokens[:, self.first : tokens.shape[1] - self.last]

    def with_ends(self, middle: Array) -> Array:
        return jnp.pad(middle, ((0, 0), (self.first, self.last)), constant_values=1)


class SnapKV(Baseline):
    """Li et al., 2024: the last queries' attention, smoothed over neighbours, decides what is kept beside them."""

    def worth(self, received: Array) -> Array:
        half, near = SNAPKV_KERNEL // 2, received.shape[1] - self.last
        wide = jnp.pad(received[:, :near], ((0, 0), (half, half)))
        smoothed = jnp.stack([wide[:, shift : shift + near] for shift in range(SNAPKV_KERNEL)]).sum(axis=0)
        return jnp.concatenate([smoothed, received[:, near:]], axis=1)


class H2O(Baseline):
    """Zhang et al., 2023: half of what is kept are the last tokens, half those with most attention so far. For each
    generated token one is forgotten: that with least attention, which is not among the last."""

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        return super().build(prompt, eviction)._replace(marks=eviction)

    def in_turn(self, queries: Array, cache: Cache, softmax: Softmax, offset: Array, seen: Array) -> Array:
        """The attention of columns one after the other."""
        body = cache.keys.shape[1]
        keys = jnp.concatenate([cache.keys, cache.pinned_keys], axis=1)

        def step(cache: Cache, column: tuple[Array, Array]) -> tuple[Cache, Array]:
            query, sees = column[0][:, None], column[1][None]
            weights = softmax.weigh(scores(query, keys), offset) * visible_to(1, body, sees)
            present = jnp.concatenate([cache.values, cache.pinned_values], axis=1)[..., -1:]
            received = added_up(softmax, weights, weighted(weights, present), len(keys))[:, :body]
            counted = cache.marks + received
            recent = jnp.arange(body) >= body - self.last + jnp.sum(sees)
            lowest = top(-counted - NEVER * (recent + 2 * (cache.values[..., -1] == 0)), 1)
            after = cache._replace(values=cache.values * (1 - lowest)[..., None], marks=counted)
            return after, self.attend(query, cache, None, softmax, offset, sees)[:, 0]

        return lax.scan(step, cache, (queries.swapaxes(0, 1), seen))[1].swapaxes(0, 1)


class LongCache(Baseline):
    """Liu et al., 2024: at every step, the single tokens whose keys have the highest cosine with the query."""

    cosine: ClassVar[bool] = True

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        return FullCache.build(self, prompt, None)._replace(marks=_directions(self.middle(prompt.keys)))

    def choose(self, queries: Array, cache: Cache, shuffles: Shuffles) -> Array | None:
        assert cache.marks is not None
        similarity = similarities(_directions(queries) if self.cosine else queries, cache.marks)
        return jnp.repeat(top(similarity, self.between), self.block, axis=1)

    def attend(
        self, queries: Array, cache: Cache, choice: Array | None, softmax: Softmax, offset: Array, seen: Array
    ) -> Array:
        assert choice is not None
        read = cache._replace(values=cache.values * self.with_ends(choice)[..., None])
        return super().attend(queries, read, None, softmax, offset, seen)


class InfLLM(LongCache):
    """Xiao et al., 2024: blocks of adjacent tokens whose most attended representatives score highest with the query."""

    cosine = False

    def build(self, prompt: PromptLayer, eviction: Array | None) -> Cache:
        """A block's mark is its representatives' sum: a query's similarity is the sum of its products with them."""
        assert eviction is not None
        groups, _, size = prompt.keys.shape
        represent = top(self.middle(eviction).reshape(groups, -1, self.block), REPRESENTATIVES)
        marks = (self.middle(prompt.keys).reshape(groups, -1, self.block, size) * represent[..., None]).sum(axis=2)
        return FullCache.build(self, prompt, None)._replace(marks=marks)


def _directions(vectors: Array) -> Array:
    return vectors * lax.rsqrt(jnp.sum(vectors * vectors, axis=-1, keepdims=True) + 1e-3)  # padding has none


def method_of(name: str, plan: CachePlan, prompt_tokens: int, new_tokens: int) -> Method:
    """By name, as it is compared: every one reads as many tokens of a prompt as the plan allows."""
    read = plan.tokens_read(prompt_tokens)
    if name in ("full", "mpcache") or read == prompt_tokens:
        return make_method(plan, prompt_tokens, new_tokens)
    first, last, near = plan.pinned_first, plan.pinned_last, max(1, min(SNAPKV_WINDOW, read // 2))
    if name == "streaming":
        return Baseline(new_tokens, first=first, last=read - first)
    if name == "snapkv":
        return SnapKV(new_tokens, window=near, last=near, between=read - near)
    if name == "h2o":
        return H2O(new_tokens, window=prompt_tokens, last=read // 2, between=read - read // 2)
    if name == "longcache":
        return LongCache(new_tokens, first=first, last=last, between=read - first - last)
    block, window = plan.cluster, round(plan.window * prompt_tokens)
    first += (prompt_tokens - first - last) % block
    return InfLLM(new_tokens, window, first=first, last=last, between=(read - first - last) // block, block=block)
