from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

import jax

from cloister_mpc.functions.activations import GELU_EDGE, gelu
from tests.examples import examples

SHAPES = st.sampled_from([(5,), (2, 3), (1, 2, 3)])  # few: JAX compiles for each


def exact(x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.gelu(x))


@examples(15)
@given(hn.arrays(np.float32, SHAPES, elements=st.floats(-60, 60, width=32)))
def test_close_for_any_shape(x: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(gelu(x)), exact(x), atol=0.0045)


def test_close_everywhere_and_closer_near_zero() -> None:
    x = np.linspace(-60, 60, 120_001).astype(np.float32)
    away = np.abs(np.asarray(gelu(x)) - exact(x))
    assert away.max() <= 0.0045
    assert away[np.abs(x) < 1].max() <= 0.0012
    assert away[60_000] < 1e-6, "at zero"


def test_tails_are_exact() -> None:
    x = np.array([-1000, -GELU_EDGE - 0.01, GELU_EDGE + 0.01, 1000], np.float32)
    assert np.asarray(gelu(x)).tolist() == [0, 0, x[2], 1000]
