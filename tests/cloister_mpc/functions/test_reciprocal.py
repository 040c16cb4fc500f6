from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.softmax import HIGHEST, LOWEST, divide_by_last
from tests.examples import examples


@examples(15)
@given(st.sampled_from([(3,), (2, 4), (3, 1, 2)]), st.integers(0, 2**16))
def test_all_columns_are_divided_by_the_last(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    ratios = rng.uniform(0.1, 3, shape)
    denominators = np.exp2(rng.uniform(np.log2(LOWEST), np.log2(HIGHEST), (*shape[:-1], 1)))
    sums = np.concatenate([ratios * denominators, denominators], axis=-1).astype(np.float32)
    np.testing.assert_allclose(np.asarray(divide_by_last(sums)), ratios, rtol=2.2e-4)


def test_every_interval_is_close() -> None:
    denominators = np.geomspace(LOWEST, HIGHEST, 20_000).astype(np.float32)
    sums = np.stack([-2 * denominators, denominators], axis=-1)
    np.testing.assert_allclose(np.asarray(divide_by_last(sums)), -2, rtol=2.2e-4)


def test_nothing_divided_by_nothing_is_nothing() -> None:
    """A row of padding."""
    assert np.asarray(divide_by_last(np.zeros((2, 5), np.float32))).tolist() == [[0] * 4] * 2
