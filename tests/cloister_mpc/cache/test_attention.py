from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister_mpc.cache import attention as module
from cloister_mpc.cache.attention import attention_received, headwise, take
from cloister_mpc.functions.ring import tracing_for_shares
from tests.cloister_mpc.cache.drawn import NO_OFFSET, SOFTMAX, at_once, drawn_prompt, few, floats, received, windowed

sizes = st.integers(1, 7)


@few
@given(groups=sizes, rows=sizes, inner=sizes, columns=sizes, integers=st.booleans(), seed=st.integers(0, 99))
def test_one_product_for_shares_is_every_heads_product(
    groups: int, rows: int, inner: int, columns: int, integers: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    left = draw.integers(0, 2, (groups, rows, inner), dtype=np.int32) if integers else floats(draw, groups, rows, inner)
    right = floats(draw, groups, inner, columns)
    with tracing_for_shares():
        together = at_once(headwise, left, right)
    assert np.allclose(together, left @ right, atol=1e-4)


def test_many_heads_go_in_several_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_BLOCK", 16 * 2 * 3)
    draw = np.random.default_rng(1)
    left, right = draw.integers(0, 2, (10, 2, 3), dtype=np.int32), floats(draw, 10, 3, 5)
    with tracing_for_shares():
        assert np.allclose(at_once(headwise, left, right), left @ right, atol=1e-4)


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
    found = at_once(lambda given: attention_received(given, SOFTMAX, NO_OFFSET), prompt)
    assert np.allclose(found, received(prompt), atol=1e-4)


@few
@given(runs=st.integers(1, 6), granularity=st.integers(1, 4), seed=st.integers(0, 99))
def test_rows_take_whole_runs(runs: int, granularity: int, seed: int) -> None:
    prompt = drawn_prompt(seed, runs * granularity)
    places = np.random.default_rng(seed).permutation(runs)[: max(1, runs // 2)]
    rows = np.broadcast_to(np.eye(runs, dtype=np.int32)[places], (2, len(places), runs))
    expected = prompt.keys.reshape(2, runs, granularity, -1)[:, places].reshape(2, len(places) * granularity, -1)
    assert np.array_equal(at_once(lambda *given: take(*given, granularity), rows, prompt.keys), expected)
