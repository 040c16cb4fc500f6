from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.lookup import HIGHEST, LOWEST, rsqrt
from tests.examples import examples


@examples(15)
@given(st.lists(st.floats(LOWEST, HIGHEST, width=32), min_size=3, max_size=3))
def test_close_to_one_over_the_root(values: list[float]) -> None:
    x = np.array(values, np.float32)[None]
    np.testing.assert_allclose(np.asarray(rsqrt(x)), 1 / np.sqrt(x), rtol=6e-4)


def test_every_interval_is_close() -> None:
    x = np.geomspace(LOWEST, HIGHEST, 20_000).astype(np.float32)
    np.testing.assert_allclose(np.asarray(rsqrt(x)), 1 / np.sqrt(x), rtol=6e-4)


def test_zero_and_tiny_stay_finite() -> None:
    """The mean square of a padding column, plus epsilon."""
    assert np.all(np.abs(np.asarray(rsqrt(np.array([0, 1e-8, 1e-5], np.float32)))) < 200)
