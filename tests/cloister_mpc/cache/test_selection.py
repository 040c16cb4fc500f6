from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloister_mpc.cache.base import Cache, seen_slots
from cloister_mpc.cache.methods import MPCache, similarities, sizes_of
from tests.cloister_mpc.cache.drawn import NO_OFFSET, SOFTMAX, at_once, attention, few, floats, plan


@few
@given(groups=st.integers(1, 3), clusters=st.integers(1, 5), seed=st.integers(0, 99))
def test_clusters_are_as_similar_as_their_marks_are_to_the_group_s_queries(
    groups: int, clusters: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    marks, queries = floats(draw, groups, clusters, 8), floats(draw, groups * 2, 1, 8)
    expected = np.einsum("gcd,gd->gc", marks, queries.reshape(groups, 2, 8).sum(axis=1))
    assert np.allclose(at_once(similarities, queries, marks), expected, atol=1e-4)


def test_queries_of_a_group_ask_together() -> None:
    queries, marks = floats(np.random.default_rng(0), 6, 2, 8), np.broadcast_to(np.eye(8, dtype=np.float32), (2, 8, 8))
    assert np.allclose(similarities(queries, marks)[1], queries[3:].sum(axis=(0, 1)), atol=1e-5)


@few
@given(
    clusters=st.integers(1, 5),
    size=st.integers(1, 4),
    new=st.integers(1, 3),
    group=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_gathered_scores_answer_as_one_by_one(clusters: int, size: int, new: int, group: int, seed: int) -> None:
    draw, groups, pinned = np.random.default_rng(seed), 2, 5
    values, pinned_values = floats(draw, groups, clusters * size, 9), floats(draw, groups, pinned, 9)
    values[..., -1], pinned_values[..., -1] = 1, 1
    values[:, :1] = 0  # a token of padding, which weighs nothing even when its cluster is chosen
    keys, pinned_keys = floats(draw, groups, clusters * size, 8), floats(draw, groups, pinned, 8)
    cache = Cache(keys, values, None, pinned_keys, pinned_values)
    places = np.stack([draw.permutation(clusters)[: max(1, clusters // 2)] for _ in range(groups)])
    choice = np.eye(clusters, dtype=np.int32)[places]
    queries, seen = floats(draw, groups * group, new, 8), np.asarray(seen_slots(pinned, pinned - new, new))

    sizes = sizes_of(plan(budget=0.5, granularity=2, cluster=4), 64)
    assert sizes is not None

    def attend(*given: Any) -> Any:
        return MPCache(sizes, new).attend(*given, SOFTMAX, NO_OFFSET, seen)

    by_scores = at_once(attend, queries, cache, choice)
    for head in range(groups * group):
        g = head // group
        chosen = (places[g][:, None] * size + np.arange(size)).ravel()
        for column in range(new):
            sees = seen[column] > 0
            expected = attention(
                queries[head, column],
                np.concatenate([keys[g, chosen], pinned_keys[g, sees]]),
                np.concatenate([values[g, chosen], pinned_values[g, sees]]),
            )
            assert np.allclose(by_scores[head, column], expected, atol=1e-4)
