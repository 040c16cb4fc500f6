"""Layers drawn at random, and the plainest ways to compute what the cache's methods compute."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles
from cloister_mpc.cache.methods import Method, make_method
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT
from tests.examples import examples

few = examples(8)
"""Every new shape is compiled: a few examples go a long way."""

Floats = NDArray[np.float32]
SOFTMAX = EXACT.softmax
NO_OFFSET = np.zeros((1, 1, 1), np.float32)


def at_once(function: Callable[..., Any], *given: Any) -> Any:
    """What the function answers, as one compiled program: op by op, each is compiled for each new shape."""
    return jax.jit(lambda *values: function(*values))(*given)


def plan(method: str = "mpcache", **settings: object) -> CachePlan:
    """A plan for the small prompts of tests: no floor under its budget."""
    return CachePlan(
        method=method,  # type: ignore[arg-type]
        **{
            "at_least": 0,
            "pinned_first": 4,
            "pinned_last": 4,
            "static_keep": 0.5,
            "window": 0.2,
            **settings,
        },  # type: ignore[arg-type]
    )


def floats(draw: np.random.Generator, *shape: int) -> Floats:
    return draw.normal(size=shape).astype(np.float32)


def drawn_prompt(
    seed: int, tokens: int, *, groups: int = 2, group: int = 2, size: int = 8, padding: int = 0
) -> PromptLayer:
    """Queries of all tokens; the first `padding` tokens are not there."""
    draw = np.random.default_rng(seed)
    keys, values = floats(draw, groups, tokens, size), floats(draw, groups, tokens, size + 1)
    values[..., -1] = 1
    keys[:, :padding], values[:, :padding] = 0, 0
    queries = floats(draw, groups * group, tokens, size)
    queries[:, :padding] = 0
    return PromptLayer(queries, keys, values)


def windowed(prompt: PromptLayer, window: int) -> PromptLayer:
    return prompt._replace(queries=prompt.queries[:, -window:])


def drawn_shuffles(seed: int, groups: int, sizes: tuple[int, ...]) -> Shuffles:
    draw = np.random.default_rng(seed)
    eyes = [np.eye(size, dtype=np.int32) for size in sizes]
    return tuple(np.stack([eye[draw.permutation(len(eye))] for _ in range(groups)]) for eye in eyes)


def built(chosen: CachePlan, prompt: PromptLayer, new_tokens: int = 3, seed: int = 0) -> tuple[Method, Cache]:
    """The plan's method and its cache of the prompt."""
    groups, tokens = prompt.keys.shape[:2]
    method, cache_of = _builder(chosen, tokens, new_tokens)
    shuffles = drawn_shuffles(seed, groups, method.evict_shuffles)
    return method, cache_of(windowed(prompt, method.window), shuffles)


@lru_cache
def _builder(chosen: CachePlan, tokens: int, new_tokens: int) -> tuple[Method, Callable[..., Cache]]:
    """Compiled once for all tests of a plan."""
    method = make_method(chosen, tokens, new_tokens)

    def cache_of(prompt: PromptLayer, shuffles: Shuffles) -> Cache:
        return method.build(prompt, method.evict(prompt, SOFTMAX, NO_OFFSET, shuffles))

    return method, jax.jit(cache_of)


def probabilities(prompt: PromptLayer) -> Floats:
    """(H, W, T): the attention of the given queries, which are the prompt's last; padding neither asks nor is seen."""
    heads, window, _ = prompt.queries.shape
    groups, tokens, _ = prompt.keys.shape
    found = np.zeros((heads, window, tokens), np.float32)
    for head in range(heads):
        kv = head // (heads // groups)
        for row in range(window):
            at = tokens - window + row
            there = (np.arange(tokens) <= at) & (prompt.values[kv, :, -1] > 0)
            if prompt.values[kv, at, -1] > 0:
                found[head, row, there] = softmax(prompt.keys[kv, there] @ prompt.queries[head, row])
    return found


def received(prompt: PromptLayer) -> Floats:
    """(G, T): those, summed over queries and the heads of a group."""
    groups, tokens, _ = prompt.keys.shape
    return probabilities(prompt).sum(axis=1).reshape(groups, -1, tokens).sum(axis=1)


def softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attention(query: Floats, keys: Floats, values: Floats) -> Floats:
    """(d,) over (t, d) and (t, d + 1), of whose tokens only those that are there count."""
    there = values[:, -1] > 0
    return softmax(keys[there] @ query) @ values[there, :-1]
