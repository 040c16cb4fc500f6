from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: pip install '.[mpc]'")

from cloister.mpc.functions.exponential import NARROW, WIDE, PowerExponential
from tests.examples import examples

BOTH = pytest.mark.parametrize(("exponential", "error"), [(WIDE, 1e-3), (NARROW, 6e-3)], ids=["wide", "narrow"])


@BOTH
def test_close_where_weights_matter(exponential: PowerExponential, error: float) -> None:
    x = np.linspace(-2, exponential.highest, 5000).astype(np.float32)
    np.testing.assert_allclose(np.asarray(exponential(x)), np.exp(x), rtol=error)


@BOTH
def test_nothing_is_ever_large_on_the_left(exponential: PowerExponential, error: float) -> None:
    x = np.linspace(exponential.lowest, -2, 20_000).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    away = np.abs(np.asarray(exponential(x)) - exact)
    assert away[x < -13].max() < 2.0**-17
    assert (away / exact)[x > -7].max() < 5 * error


@examples(15)
@given(st.floats(-160, 13, width=32), st.floats(-160, 13, width=32))
def test_the_larger_score_never_weighs_noticeably_less(one: float, other: float) -> None:
    weights = np.asarray(WIDE(np.array(sorted([one, other]), np.float32)))
    assert weights[0] <= weights[1] * 1.002 + 1e-5
