"""What all methods promise, on plain numbers: one matrix over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from cloister_mpc.cache.base import Cache, Shuffles, seen_slots, write_slots
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
)

TOKENS, NEW = 48, 4
PLANS = {
    method: plan(method=method, budget=0.5, granularity=2, cluster=4, static_keep=0.75)
    for method in ("full", "mpcache")
}

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
        return method.attend(queries, cache, choice, SOFTMAX, NO_OFFSET, seen), cache

    return jax.jit(run)


@pytest.mark.parametrize("name", PLANS)
def test_a_budget_of_everything_is_the_full_cache(name: str) -> None:
    prompt = drawn_prompt(1, TOKENS)
    new = generated(2, 1)
    everything, cache = built(plan(name, budget=1.0), prompt, NEW)
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
    if name == "full":
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
        return tuple(method.attend(queries, each, choice, SOFTMAX, NO_OFFSET, seen) for each in (cache, changed))

    out, other = at_once(both, cache, drawn_shuffles(1, 2, method.choose_shuffles))
    assert np.allclose(out[:, :2], other[:, :2], atol=1e-5)
    assert not np.allclose(out[:, 2], other[:, 2], atol=1e-3)
