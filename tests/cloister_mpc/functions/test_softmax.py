from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

import jax

from cloister_mpc.cache.base import Softmax
from cloister_mpc.functions.softmax import EXACT, LEAN
from tests.examples import examples


def attention(softmax: Softmax, scores: np.ndarray, values: np.ndarray, offset: float) -> np.ndarray:
    weights = softmax.weigh(scores, np.full((scores.shape[0], 1), offset, np.float32))
    with_ones = np.concatenate([values, np.ones((len(values), 1), np.float32)], axis=1)
    return np.asarray(softmax.divide(weights @ with_ones))


@pytest.mark.parametrize(
    ("softmax", "error"),
    [(LEAN, 4e-3), (EXACT, 1e-5)],
    ids=["lean", "exact"],
)
@examples(15)
@given(rows=st.sampled_from([1, 3]), tokens=st.sampled_from([1, 40]), top=st.floats(-4, 8), seed=st.integers(0, 2**16))
def test_answers_are_attentions(softmax: Softmax, error: float, rows: int, tokens: int, top: float, seed: int) -> None:
    """Whatever the rows' maxima are within their window around the offset; far scores weigh nothing."""
    rng = np.random.default_rng(seed)
    scores = -rng.exponential(3, (rows, tokens)).astype(np.float32)
    scores[:, 0] = 0
    scores[:, 1::7] = -100
    values = rng.normal(size=(tokens, 5)).astype(np.float32)
    found = attention(softmax, scores + np.float32(top + 3), values, offset=3.0)
    np.testing.assert_allclose(found, np.asarray(jax.nn.softmax(scores)) @ values, atol=error)


def test_the_offset_is_subtracted_where_no_maximum_is() -> None:
    scores, offset = np.zeros((1, 2), np.float32), np.float32(2)
    np.testing.assert_allclose(np.asarray(LEAN.weigh(scores, offset)), np.exp(-2), rtol=3e-3)
    np.testing.assert_allclose(np.asarray(EXACT.weigh(scores, offset)), 1)
