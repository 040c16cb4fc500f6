from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister_mpc.cache.base import Cache, Choice, seen_slots
from cloister_mpc.cache.selection import (
    Similarity,
    attend_by_keys,
    attend_by_scores,
    choose_clusters,
    cluster_marks,
    of_groups,
    similarities,
)
from tests.cloister_mpc.cache.drawn import NO_OFFSET, SOFTMAX, at_once, attention, drawn_shuffles, few, floats

ALPHA = 0.6


def one_by_one(query: np.ndarray, cluster: np.ndarray, similarity: Similarity) -> float:
    r_max, r_min = cluster.max(axis=0), cluster.min(axis=0)
    if similarity == "average":
        return float(query @ cluster.mean(axis=0))
    if similarity == "max":
        return float(np.maximum(query * r_max, query * r_min).sum())
    return float(ALPHA * query @ r_max + (1 - ALPHA) * query @ r_min)


@pytest.mark.parametrize("similarity", ["linear", "max", "average"])
@few
@given(groups=st.integers(1, 3), clusters=st.integers(1, 5), seed=st.integers(0, 99))
def test_every_level_is_as_similar_as_its_definition_says(
    similarity: Similarity, groups: int, clusters: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    keys, queries, levels = floats(draw, groups, clusters * 4, 8), floats(draw, groups * 2, 1, 8), (4, 2)
    query = queries.reshape(groups, 2, 8).sum(axis=1)

    def similar(keys: Any, queries: Any) -> Any:
        marks = tuple(cluster_marks(keys, size, similarity, ALPHA) for size in levels)
        return similarities(queries, marks, similarity, "sum")

    for size, found in zip(levels, at_once(similar, keys, queries), strict=True):
        parts = keys.reshape(groups, -1, size, 8)
        expected = [[one_by_one(query[g], part, similarity) for part in parts[g]] for g in range(groups)]
        assert np.allclose(found, expected, atol=1e-4)


@few
@given(seed=st.integers(0, 99))
def test_the_maximum_bounds_every_product(seed: int) -> None:
    """Equation 1 is an upper bound of the best token's score; so no cluster is thought worse than its best token."""
    draw = np.random.default_rng(seed)
    keys, query = floats(draw, 1, 12, 8), floats(draw, 1, 1, 8)
    (found,) = similarities(query, (cluster_marks(keys, 4, "max", ALPHA),), "max", "sum")
    assert (np.asarray(found)[0] >= (keys[0] @ query[0, 0]).reshape(3, 4).max(axis=1) - 1e-4).all()


def test_queries_of_a_group_ask_together() -> None:
    queries = floats(np.random.default_rng(0), 6, 2, 8)
    assert np.allclose(of_groups(queries, 2)[1, 0], queries[3:].sum(axis=(0, 1)), atol=1e-5)


def test_heard_one_by_one_a_cluster_that_stands_out_to_one_query_comes_first() -> None:
    """Two heads of a group whose queries cancel each other: their sum sees nothing, each by itself sees its own."""
    query = np.zeros((2, 1, 8), np.float32)
    query[0, 0, 0], query[1, 0, 0] = 1, -1
    keys = np.zeros((1, 6, 8), np.float32)
    keys[0, 4, 0] = 3
    marks = (cluster_marks(keys, 2, "average", ALPHA),)
    assert not np.asarray(similarities(query, marks, "average", "sum")[0]).any()
    assert np.asarray(similarities(query, marks, "average", "max")[0]).argmax() == 2


@few
@given(
    groups=st.integers(1, 3),
    coarse=st.integers(2, 6),
    factor=st.integers(1, 3),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_levels_pass_on_what_a_search_would(
    groups: int, coarse: int, factor: int, seed: int, data: st.DataObject
) -> None:
    passed = data.draw(st.integers(1, coarse))
    count = data.draw(st.integers(1, passed * factor))
    draw = np.random.default_rng(seed)
    similar = (floats(draw, groups, coarse), floats(draw, groups, coarse * factor))
    shuffles = drawn_shuffles(seed, groups, (coarse, passed * factor))
    rows = np.asarray(
        at_once(lambda *given: choose_clusters(given[0], (passed, count), given[1]).rows, similar, shuffles)
    )
    assert (rows.sum(axis=-1) == 1).all()
    for g in range(groups):
        candidates = [c * factor + f for c in np.argsort(-similar[0][g])[:passed] for f in range(factor)]
        best = sorted(candidates, key=lambda fine: -similar[1][g, fine])[:count]
        assert rows[g].argmax(axis=-1).tolist() == best


@few
@given(
    clusters=st.integers(1, 5),
    size=st.integers(1, 4),
    new=st.integers(1, 3),
    group=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_gathered_scores_answer_as_gathered_keys_and_as_one_by_one(
    clusters: int, size: int, new: int, group: int, seed: int
) -> None:
    draw, groups, pinned = np.random.default_rng(seed), 2, 5
    values, pinned_values = floats(draw, groups, clusters * size, 9), floats(draw, groups, pinned, 9)
    values[..., -1], pinned_values[..., -1] = 1, 1
    values[:, :1] = 0  # a token of padding, which weighs nothing even when its cluster is chosen
    keys, pinned_keys = floats(draw, groups, clusters * size, 8), floats(draw, groups, pinned, 8)
    cache = Cache(keys, values, (), pinned_keys, pinned_values, None)
    places = np.stack([draw.permutation(clusters)[: max(1, clusters // 2)] for _ in range(groups)])
    choice = Choice(np.eye(clusters, dtype=np.int32)[places])
    queries, seen = floats(draw, groups * group, new, 8), np.asarray(seen_slots(pinned, pinned - new, new))

    def both(*given: Any) -> Any:
        return tuple(attend(*given, SOFTMAX, NO_OFFSET, seen) for attend in (attend_by_scores, attend_by_keys))

    by_scores, by_keys = at_once(both, queries, cache, choice)
    assert np.allclose(by_scores, by_keys, atol=1e-4)
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
