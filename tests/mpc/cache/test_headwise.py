from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.cache import attention as module
from cloister.mpc.cache.attention import headwise
from cloister.mpc.functions.ring import tracing_for_shares
from tests.mpc.cache.drawn import few, floats

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
        together = headwise(left, right)
    assert np.allclose(together, left @ right, atol=1e-4)


def test_many_heads_go_in_several_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_BLOCK", 16 * 2 * 3)
    draw = np.random.default_rng(1)
    left, right = draw.integers(0, 2, (10, 2, 3), dtype=np.int32), floats(draw, 10, 3, 5)
    with tracing_for_shares():
        assert np.allclose(headwise(left, right), left @ right, atol=1e-4)
