"""The same code on shares: three parties as threads. Shapes are few and small, since each is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from spu import libspu
from spu.utils import frontend

from cloister_mpc.cache.attention import LARGEST_WIDTH, headwise
from cloister_mpc.cache.base import PromptLayer, Shuffles, seen_slots, write_slots
from cloister_mpc.cache.methods import Method, make_method
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.cache.ranking import in_order, shuffled_rows
from cloister_mpc.functions.ring import tracing_for_shares
from tests.cloister_mpc.cache.drawn import (
    NO_OFFSET,
    SOFTMAX,
    at_once,
    drawn_prompt,
    drawn_shuffles,
    floats,
    plan,
    windowed,
)
from tests.cloister_mpc.thread_parties import ThreadParties

TOKENS = 32


@pytest.fixture(scope="module")
def parties() -> Iterator[ThreadParties]:
    with ThreadParties() as made:
        yield made


def on_shares(parties: ThreadParties, function: Callable[..., Any], *given: Any) -> Any:
    """What the function answers when all it is given are shares."""
    leaves, form = jax.tree_util.tree_flatten(given)
    names = [f"given{number}" for number in range(len(leaves))]
    for name, leaf in zip(names, leaves, strict=True):
        parties.put(name, np.asarray(leaf))

    def flat(*values: Any) -> Any:
        return jax.tree_util.tree_leaves(function(*jax.tree_util.tree_unflatten(form, values)))

    with tracing_for_shares():
        code, _ = frontend.compile(
            frontend.Kind.JAX, flat, leaves, {}, names, [libspu.Visibility.VIS_SECRET] * len(names),
            lambda answers: [f"answer{number}" for number in range(len(answers))],
        )  # fmt: skip
    parties.each(lambda party: party.runtime.run(code))
    answers = [parties.join(name) for name in code.output_names]
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(jax.eval_shape(function, *given)), answers)


def named(rows: Any) -> list[list[int]]:
    assert (np.asarray(rows).sum(axis=-1) == 1).all()
    return np.asarray(rows).argmax(axis=-1).tolist()


@pytest.mark.parametrize("count", [7, 8, 33])  # the last in two rounds
def test_the_largest_are_found_and_put_in_order(parties: ThreadParties, count: int) -> None:
    numbers = floats(np.random.default_rng(count), 2, count)
    numbers[1, 2:5] = 0  # equal ones: the earlier comes first
    shuffles = drawn_shuffles(count, 2, (count, 3))

    def both(given: Any, wide: Any, narrow: Any) -> Any:
        rows = shuffled_rows(given, wide, 3)
        return rows, in_order(rows, narrow)

    rows, ordered = on_shares(parties, both, numbers, *shuffles)
    expected = np.argsort(-numbers, axis=-1, kind="stable")[:, :3].tolist()
    assert named(rows) == expected
    assert named(ordered) == [sorted(row) for row in expected]


def test_wide_products_go_head_by_head_and_are_truncated_together(parties: ThreadParties) -> None:
    draw = np.random.default_rng(4)
    left, right = floats(draw, 3, 1, LARGEST_WIDTH + 1) * 100, floats(draw, 3, LARGEST_WIDTH + 1, 2) * 100
    np.testing.assert_allclose(on_shares(parties, headwise, left, right), left @ right, atol=0.05)


def step(method: Method, softmax: Any = SOFTMAX) -> Callable[..., Any]:
    """A prompt's eviction, its cache, and one step on it; what was kept and chosen beside the answer."""

    def run(
        prompt: PromptLayer, evicting: Shuffles, choosing: Shuffles, queries: Any, keys: Any, values: Any, offset: Any
    ) -> Any:
        eviction = method.evict(prompt, softmax, offset, evicting)
        cache = write_slots(method.build(prompt, eviction), method.first_free, keys, values)
        choice = method.choose(queries, cache, choosing)
        seen = seen_slots(cache.pinned_keys.shape[1], method.first_free, 1)
        out = method.attend(queries, cache, choice, softmax, offset, seen)
        return out, eviction, choice

    return run


def tokens_read(method: Any, eviction: Any, choice: Any) -> list[list[int]]:
    """Tokens that are read of what may be selected from: rows themselves may come in any order."""
    sizes, read = method.sizes, []
    for kept, places in zip(named(eviction), named(choice), strict=True):
        runs = kept[sizes.always_runs :]
        body = [run * sizes.granularity + token for run in runs for token in range(sizes.granularity)]
        size = sizes.cluster
        read.append(sorted(body[place * size + token] for place in places for token in range(size)))
    return read


PLANS = {
    "mpcache": plan(budget=0.6, granularity=2, always=0.4, cluster=4, pinned_first=2, pinned_last=2),
    "mpcache, runs as large as clusters": plan(budget=0.6, granularity=4, cluster=4, pinned_first=4),
    "mpcache, none always read": plan(budget=0.6, granularity=2, always=0.0, cluster=2, pinned_first=2),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_step_on_shares_keeps_chooses_and_answers_as_on_plain_numbers(parties: ThreadParties, name: str) -> None:
    chosen: CachePlan = PLANS[name]
    method = make_method(chosen, TOKENS, 2)
    draw = np.random.default_rng(5)
    values = floats(draw, 2, 1, 9)
    values[..., -1] = 1
    given = (
        windowed(drawn_prompt(4, TOKENS, padding=2), method.window),
        drawn_shuffles(6, 2, method.evict_shuffles),
        drawn_shuffles(7, 2, method.choose_shuffles),
        floats(draw, 4, 1, 8),
        floats(draw, 2, 1, 8),
        values,
        NO_OFFSET,
    )
    out, eviction, choice = at_once(step(method), *given)
    shared_out, shared_eviction, shared_choice = on_shares(parties, step(method), *given)
    assert sorted(map(sorted, named(shared_eviction))) == sorted(map(sorted, named(eviction)))
    assert tokens_read(method, shared_eviction, shared_choice) == tokens_read(method, eviction, choice)
    assert np.allclose(shared_out, out, atol=0.02)
