from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache.base import Cache, Choice, seen_slots
from cloister.mpc.cache.selection import attend_by_keys, attend_by_scores, choose_clusters
from tests.mpc.cache.drawn import NO_OFFSET, SOFTMAX, attention, drawn_shuffles, few, floats


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
    shuffles = drawn_shuffles(seed, groups, (coarse, passed * factor)).matrices
    rows = np.asarray(choose_clusters(similar, (passed, count), shuffles).rows)
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
    by_scores = attend_by_scores(queries, cache, choice, SOFTMAX, NO_OFFSET, seen)
    assert np.allclose(by_scores, attend_by_keys(queries, cache, choice, SOFTMAX, NO_OFFSET, seen), atol=1e-4)
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
