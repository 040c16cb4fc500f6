"""What all methods promise, on plain numbers: one matrix over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles, seen_slots, write_slots
from cloister_mpc.cache.methods import Method
from tests.cloister_mpc.cache.drawn import (
    NO_OFFSET,
    SOFTMAX,
    at_once,
    attention,
    built,
    drawn_prompt,
    drawn_shuffles,
    floats,
    plan,
    plan_of,
)

TOKENS, NEW = 48, 4
PLANS = {
    method: plan(method=method, budget=0.5, granularity=2, cluster=4, static_keep=0.75)
    for method in ("full", "mpcache", "longcache", "infllm", "h2o", "snapkv", "tova", "streaming")
}
FORGETFUL = ("h2o", "tova")

STEPS: dict[int, tuple[Method, Callable[..., tuple[Any, Cache]]]] = {}
"""Compiled once for all tests of a plan: `built` gives them the same method. It has no hash, and is kept."""


def generated(seed: int, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries (H, n, d), keys and values of new tokens."""
    draw = np.random.default_rng(seed)
    values = floats(draw, 2, count, 9)
    values[..., -1] = 1
    return floats(draw, 4, count, 8), floats(draw, 2, count, 8), values


def step(
    method: Method, cache: Cache, at: int, queries: np.ndarray, keys: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, Cache]:
    shuffles = drawn_shuffles(at, 2, method.choose_shuffles)
    if id(method) not in STEPS:
        STEPS[id(method)] = method, _stepper(method)
    out, cache = STEPS[id(method)][1](cache, np.int32(method.first_free + at), queries, keys, values, shuffles)
    return np.asarray(out), cache


def _stepper(method: Method) -> Callable[..., tuple[Any, Cache]]:
    def run(cache: Cache, slot: Any, queries: Any, keys: Any, values: Any, shuffles: Shuffles) -> tuple[Any, Cache]:
        cache = write_slots(cache, slot, keys, values)
        choice = method.choose(queries, cache, shuffles)
        seen = seen_slots(cache.pinned_keys.shape[1], slot, keys.shape[1])
        return method.attend(queries, cache, choice, SOFTMAX, NO_OFFSET, seen)

    return jax.jit(run)


def tokens_kept(prompt: PromptLayer, cache: Cache, group: int) -> list[int]:
    """Which tokens of the prompt a cache still has, whether pinned or in the body: by their keys."""
    held = np.concatenate([cache.keys[group], cache.pinned_keys[group]])
    there = np.concatenate([cache.values[group, :, -1], cache.pinned_values[group, :, -1]]) > 0
    return [
        at for at, key in enumerate(prompt.keys[group]) if np.isclose(held[there], key, atol=1e-5).all(axis=1).any()
    ]


@pytest.mark.parametrize("name", PLANS)
def test_a_budget_of_everything_is_the_full_cache(name: str) -> None:
    prompt = drawn_prompt(1, TOKENS)
    new = generated(2, 1)
    everything, cache = built(plan_of(name, budget=1.0), prompt, NEW)
    out, _ = step(everything, cache, 0, *new)
    for head in range(4):
        group = head // 2
        keys = np.concatenate([prompt.keys[group], new[1][group]])
        values = np.concatenate([prompt.values[group], new[2][group]])
        assert np.allclose(out[head, 0], attention(new[0][head, 0], keys, values), atol=1e-4)


@pytest.mark.parametrize("name", PLANS)
def test_padding_is_never_read(name: str) -> None:
    """Values of padding may hold anything but in their last column: what is multiplied by zero tells nothing."""
    prompt = drawn_prompt(3, TOKENS, padding=5)
    method, cache = built(PLANS[name], prompt, NEW)
    out, _ = step(method, cache, 0, *generated(4, 1))
    louder = prompt._replace(keys=prompt.keys.copy())
    louder.keys[:, :4] = 0.5  # another padding: weights of it change, answers must not
    if name in ("full", "streaming", "snapkv", "h2o", "tova"):
        other, cache = built(PLANS[name], louder, NEW)
        assert np.allclose(step(other, cache, 0, *generated(4, 1))[0], out, atol=1e-4)
    assert np.isfinite(out).all()
    assert np.abs(out).max() <= np.abs(np.concatenate([prompt.values, generated(4, 1)[2]], axis=1)).max() + 1e-4


@pytest.mark.parametrize("name", PLANS)
def test_tokens_in_one_pass_do_not_see_those_after_them(name: str) -> None:
    prompt, (queries, keys, values) = drawn_prompt(5, TOKENS), generated(6, 3)
    method, cache = built(PLANS[name], prompt, NEW)

    def both(cache: Cache, shuffles: Shuffles) -> tuple[Any, Any]:
        cache = write_slots(cache, method.first_free, keys, values)
        choice = method.choose(queries, cache, shuffles)
        seen = seen_slots(cache.pinned_keys.shape[1], method.first_free, 3)
        changed = write_slots(cache, method.first_free + 2, keys[:, 2:] + 1, values[:, 2:] * 2)
        return tuple(method.attend(queries, each, choice, SOFTMAX, NO_OFFSET, seen)[0] for each in (cache, changed))

    out, other = at_once(both, cache, drawn_shuffles(1, 2, method.choose_shuffles))
    assert np.allclose(out[:, :2], other[:, :2], atol=1e-5)
    assert not np.allclose(out[:, 2], other[:, 2], atol=1e-3)


@pytest.mark.parametrize("name", FORGETFUL)
def test_one_token_is_forgotten_for_each_generated_one(name: str) -> None:
    prompt = drawn_prompt(7, TOKENS)
    method, cache = built(PLANS[name], prompt, NEW)
    for at in range(3):
        _, cache = step(method, cache, at, *generated(8 + at, 1))
        alive = np.asarray(cache.values[..., -1]).sum(axis=1) + np.asarray(cache.pinned_values[..., -1]).sum(axis=1)
        assert (alive == TOKENS // 2).all()


def test_h2o_forgets_what_got_least_attention_but_not_the_last_tokens() -> None:
    prompt = drawn_prompt(9, TOKENS)
    method, before = built(PLANS["h2o"], prompt, NEW)
    queries, keys, values = generated(10, 1)
    _, after = step(method, before, 0, queries, keys, values)
    for group in range(2):
        gone = set(tokens_kept(prompt, before, group)) - set(tokens_kept(prompt, after, group))
        body = int(np.argmin(np.asarray(after.values[group, :, -1])))
        counted = np.asarray(after.scores[group])
        may_go = before.keys.shape[1] - method.last + 1  # one of the last ones is no longer among the last
        assert len(gone) == 1 and body < may_go and body == int(np.argmin(counted[:may_go]))


def test_streaming_keeps_both_ends() -> None:
    prompt = drawn_prompt(11, TOKENS)
    _, cache = built(PLANS["streaming"], prompt, NEW)
    assert tokens_kept(prompt, cache, 0) == [*range(4), *range(TOKENS - 20, TOKENS)]


def test_longcache_reads_the_tokens_of_highest_cosine() -> None:
    prompt, (queries, keys, values) = drawn_prompt(12, TOKENS), generated(13, 1)
    method, cache = built(PLANS["longcache"], prompt, NEW)

    def rows_of(cache: Cache, shuffles: Shuffles) -> Any:
        return method.choose(queries, write_slots(cache, method.first_free, keys, values), shuffles)

    rows = np.asarray(at_once(rows_of, cache, drawn_shuffles(1, 2, method.choose_shuffles)))
    for group in range(2):
        middle = prompt.keys[group, 4:-4]
        unit = queries[2 * group : 2 * group + 2, 0]
        unit = (unit / np.linalg.norm(unit, axis=-1, keepdims=True)).sum(axis=0)
        cosines = middle @ unit / np.linalg.norm(middle, axis=-1)
        assert sorted(rows[group].argmax(axis=-1)) == sorted(np.argsort(-cosines)[: TOKENS // 2 - 8])


def test_infllm_knows_blocks_by_the_tokens_that_got_most_attention() -> None:
    prompt = drawn_prompt(14, TOKENS)
    chosen = plan(method="infllm", budget=0.5, cluster=8, window=1.0)
    method, cache = built(chosen, prompt, NEW)
    from tests.cloister_mpc.cache.drawn import received

    attended = received(prompt)[1, 4:-4].reshape(-1, 8)
    keys = prompt.keys[1, 4:-4].reshape(-1, 8, 8)
    best = np.argsort(-attended, axis=-1)[:, :4]
    expected = np.take_along_axis(keys, best[..., None], axis=1).sum(axis=1)
    assert method.sizes.first == 4 and np.allclose(cache.marks[1], expected, atol=1e-4)
