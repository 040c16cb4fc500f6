"""What each baseline keeps and reads, by the plainest way to compute it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="quality runs need the distribution cloister-mpc")

from cloister_bench.mpc.baselines import H2O, NEVER, method_of
from cloister_mpc.cache.base import seen_slots, write_slots
from cloister_mpc.cache.plan import CachePlan
from tests.cloister_mpc.cache.drawn import (
    NO_OFFSET,
    SOFTMAX,
    attention,
    drawn_prompt,
    floats,
    received,
    softmax,
    windowed,
)

TOKENS, NEW = 48, 4
PLAN = CachePlan(budget=0.5, at_least=0, pinned_first=4, pinned_last=4, cluster=8, window=1.0)
PROMPT = drawn_prompt(1, TOKENS, padding=2)


def made(name: str) -> tuple[object, object]:
    method = method_of(name, PLAN, TOKENS, NEW)
    prompt = windowed(PROMPT, method.window)
    return method, method.build(prompt, method.evict(prompt, SOFTMAX, NO_OFFSET, ()))


def kept(name: str, group: int) -> list[int]:
    """Tokens that are there in the cache; padding never is."""
    return np.flatnonzero(np.asarray(made(name)[1].values)[group, :, -1] > 0).tolist()


def best(numbers: np.ndarray, count: int) -> list[int]:
    return np.argsort(-numbers, kind="stable")[:count].tolist()


def test_streaming_keeps_both_ends() -> None:
    assert kept("streaming", 0) == [2, 3, *range(TOKENS - 20, TOKENS)]


@pytest.mark.parametrize("group", [0, 1])
def test_h2o_keeps_those_that_got_most_attention_and_the_last(group: int) -> None:
    attended = received(PROMPT)[group][: TOKENS - 12]
    assert kept("h2o", group) == sorted([*best(attended, 12), *range(TOKENS - 12, TOKENS)])


@pytest.mark.parametrize("group", [0, 1])
def test_snapkv_looks_at_neighbours_too(group: int) -> None:
    attended = received(windowed(PROMPT, 12))[group][: TOKENS - 12]
    smoothed = np.convolve(attended, np.ones(5), mode="same")
    there = [at for at in best(smoothed, 12) if at >= 2]
    assert kept("snapkv", group) == sorted([*there, *range(TOKENS - 12, TOKENS)])


@pytest.mark.parametrize("name", ["longcache", "infllm"])
def test_a_query_reads_what_is_most_similar(name: str) -> None:
    method, cache = made(name)
    queries = floats(np.random.default_rng(3), 4, 1, 8)
    chosen = np.asarray(method.choose(queries, cache, ()))
    assert kept(name, 0) == list(range(2, TOKENS)), "nothing is dropped for good"
    for group in range(2):
        middle, asking = PROMPT.keys[group, 4:-4], queries[2 * group : 2 * group + 2, 0]
        if name == "longcache":
            unit = (asking / np.linalg.norm(asking, axis=-1, keepdims=True)).sum(axis=0)
            expected = best(middle @ unit / np.linalg.norm(middle, axis=-1), TOKENS // 2 - 8)
        else:
            attended = received(PROMPT)[group, 4:-4].reshape(-1, 8)
            alike = (middle @ asking.sum(axis=0)).reshape(-1, 8)
            by_block = np.take_along_axis(alike, np.argsort(-attended, axis=-1)[:, :4], axis=1).sum(axis=1)
            expected = [8 * block + token for block in best(by_block, 2) for token in range(8)]
        assert np.flatnonzero(chosen[group]).tolist() == sorted(expected)


def test_h2o_forgets_one_for_each_token_but_none_of_the_last() -> None:
    """Against a loop that keeps, for each head of keys, which tokens are left and what they received."""
    method, cache = made("h2o")
    assert isinstance(method, H2O)
    draw = np.random.default_rng(4)
    queries, keys, values = floats(draw, 4, NEW, 8), floats(draw, 2, NEW, 8), floats(draw, 2, NEW, 9)
    values[..., -1] = 1
    cache = write_slots(cache, 0, keys, values)
    found = method.in_turn(queries, cache, SOFTMAX, NO_OFFSET, seen_slots(NEW, 0, NEW))
    for group in range(2):
        left, counted = set(kept("h2o", group)), received(PROMPT)[group].copy()
        for at in range(NEW):
            tokens = sorted(left)
            here = np.concatenate([PROMPT.keys[group, tokens], keys[group, : at + 1]])
            those = np.concatenate([PROMPT.values[group, tokens], values[group, : at + 1]])
            for head in (2 * group, 2 * group + 1):
                assert np.allclose(found[head, at], attention(queries[head, at], here, those), atol=1e-4)
                counted[tokens] += softmax(here @ queries[head, at])[: len(tokens)]
            worth = {token: counted[token] + NEVER * (token >= TOKENS - 12 + at + 1) for token in tokens}
            left.remove(min(worth, key=worth.__getitem__))
        assert len(left) == TOKENS // 2 - NEW
