from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.activations import with_tails
from tests.examples import examples

SHAPES = st.sampled_from([(5,), (2, 3), (1, 2, 3)])  # few: JAX compiles for each


@examples(15)
@given(hn.arrays(np.float32, SHAPES, elements=st.integers(-20, 20)))
def test_zero_then_middle_then_the_input(x: np.ndarray) -> None:
    found = np.asarray(with_tails(x, x * 0 + 100, 7.5, x))
    np.testing.assert_array_equal(found, np.where(x > 7.5, x, np.where(x < -7.5, 0, 100)))


def test_something_else_to_the_right() -> None:
    x = np.array([-9, 0, 9], np.float32)
    assert np.asarray(with_tails(x, x + 1, 7.5, 2 * x)).tolist() == [0, 1, 18]
