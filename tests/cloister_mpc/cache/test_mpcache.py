"""MPCache as a whole against Algorithm 3 written down token by token."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest

from cloister_mpc.cache.base import Cache, Shuffles, seen_slots, write_slots
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
    received,
    windowed,
)

TOKENS = 64

PLANS = {
    "token by token, as the paper": plan(budget=0.5, granularity=1, always=0.0, cluster=4),
    "runs and important ones": plan(budget=0.5, granularity=2, always=0.5, cluster=4),
    "runs as large as clusters": plan(budget=0.5, granularity=8, always=0.4, cluster=8),
    "runs larger than clusters": plan(budget=0.5, granularity=8, always=0.4, cluster=2),
    "nothing evicted": plan(budget=0.4, static_keep=1.0, always=0.0, cluster=4),
}


def body_of(sizes: object, prompt: object, group: int) -> tuple[list[int], list[int]]:
    """Tokens that are pinned for their importance, and those that may be selected, in their order."""
    middle = range(sizes.middle.start, sizes.middle.stop)
    if not sizes.evicts:
        return [], list(middle)
    attended = received(windowed(prompt, sizes.window))[group]
    runs = [list(middle)[at : at + sizes.granularity] for at in range(0, len(middle), sizes.granularity)]
    best = sorted(runs, key=lambda run: -attended[run].sum())
    always, kept = best[: sizes.always_runs], best[sizes.always_runs : sizes.always_runs + sizes.kept_runs]
    if sizes.needs_order:
        kept.sort()
    return list(chain(*always)), list(chain(*kept))


def chosen_of(sizes: object, keys: np.ndarray, query: np.ndarray) -> list[int]:
    """Places in the body that are read for a query: the clusters whose mean keys are most similar."""
    clusters = [list(range(at, at + sizes.cluster)) for at in range(0, len(keys), sizes.cluster)]
    return list(chain(*sorted(clusters, key=lambda places: -float(query @ keys[places].mean(axis=0)))[: sizes.count]))


@pytest.mark.parametrize("name", PLANS)
def test_a_step_reads_what_algorithm_3_reads(name: str) -> None:
    chosen, group = PLANS[name], 3
    prompt = drawn_prompt(5, TOKENS, group=group, padding=3)
    method, cache = built(chosen, prompt, new_tokens=2)
    sizes, draw = method.sizes, np.random.default_rng(6)
    new_keys, new_values = floats(draw, 2, 1, 8), floats(draw, 2, 1, 9)
    new_values[..., -1] = 1
    queries = floats(draw, 2 * group, 1, 8)

    def step(cache: Cache, shuffles: Shuffles) -> Any:
        cache = write_slots(cache, method.first_free, new_keys, new_values)
        choice = method.choose(queries, cache, shuffles)
        seen = seen_slots(cache.pinned_keys.shape[1], method.first_free, 1)
        return method.attend(queries, cache, choice, SOFTMAX, NO_OFFSET, seen)

    out = at_once(step, cache, drawn_shuffles(7, 2, method.choose_shuffles))

    for head in range(2 * group):
        g = head // group
        always, body = body_of(sizes, prompt, g)
        asked = queries[g * group : (g + 1) * group].sum(axis=(0, 1))
        read = [body[place] for place in chosen_of(sizes, prompt.keys[g, body], asked)]
        pinned = [*range(sizes.first), *always, *range(TOKENS - sizes.last, TOKENS)]
        assert len(set(read) | set(pinned)) == sizes.read <= chosen.budget * TOKENS
        tokens = [*pinned, *read]
        expected = attention(
            queries[head, 0],
            np.concatenate([prompt.keys[g, tokens], new_keys[g]]),
            np.concatenate([prompt.values[g, tokens], new_values[g]]),
        )
        assert np.allclose(out[head, 0], expected, atol=1e-4)
