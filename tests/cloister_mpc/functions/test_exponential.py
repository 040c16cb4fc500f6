from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.softmax import GREATEST_SCORE, LEAST_SCORE, exponential
from tests.examples import examples

ERROR = 1e-3


def test_close_where_weights_matter() -> None:
    x = np.linspace(-2, GREATEST_SCORE, 5000).astype(np.float32)
    np.testing.assert_allclose(np.asarray(exponential(x)), np.exp(x), rtol=ERROR)


def test_nothing_is_ever_large_on_the_left() -> None:
    x = np.linspace(LEAST_SCORE, -2, 20_000).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    away = np.abs(np.asarray(exponential(x)) - exact)
    assert away[x < -13].max() < 2.0**-17
    assert (away / exact)[x > -7].max() < 5 * ERROR


@examples(15)
@given(st.floats(-160, 13, width=32), st.floats(-160, 13, width=32))
def test_the_larger_score_never_weighs_noticeably_less(one: float, other: float) -> None:
    weights = np.asarray(exponential(np.array(sorted([one, other]), np.float32)))
    assert weights[0] <= weights[1] * 1.002 + 1e-5
