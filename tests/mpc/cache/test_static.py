from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache.attention import attention_received, take
from tests.mpc.cache.drawn import NO_OFFSET, SOFTMAX, drawn_prompt, few, received, windowed


@few
@given(
    tokens=st.integers(3, 24),
    groups=st.integers(1, 3),
    group=st.integers(1, 3),
    padding=st.integers(0, 2),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_attention_is_counted_as_one_by_one(
    tokens: int, groups: int, group: int, padding: int, seed: int, data: st.DataObject
) -> None:
    window = data.draw(st.integers(1, tokens))
    prompt = windowed(drawn_prompt(seed, tokens, groups=groups, group=group, padding=padding), window)
    assert np.allclose(attention_received(prompt, SOFTMAX, NO_OFFSET), received(prompt), atol=1e-4)


@few
@given(runs=st.integers(1, 6), granularity=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_take_whole_runs(runs: int, granularity: int, seed: int) -> None:
    prompt = drawn_prompt(seed, runs * granularity)
    places = np.random.default_rng(seed).permutation(runs)[: max(1, runs // 2)]
    rows = np.broadcast_to(np.eye(runs, dtype=np.int32)[places], (2, len(places), runs))
    expected = prompt.keys.reshape(2, runs, granularity, -1)[:, places].reshape(2, len(places) * granularity, -1)
    assert np.array_equal(take(rows, prompt.keys, granularity), expected)
