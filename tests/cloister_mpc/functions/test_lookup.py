from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.lookup import FRACTION_BITS, Table, chords, on_grid
from tests.examples import examples


@examples(15)
@given(
    edges=st.lists(st.integers(-1000, 1000), min_size=4, max_size=4, unique=True).map(sorted),
    x=st.lists(st.floats(-1500, 1500, width=32), min_size=6, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_each_value_is_its_intervals(edges: list[int], x: list[float], seed: int) -> None:
    columns = np.random.default_rng(seed).uniform(-50, 50, (2, len(edges) + 1))
    values = np.array(x, np.float32)

    found = np.asarray(Table(np.array(edges, float), columns).look_up(values))

    interval = np.searchsorted(np.array(edges), values, side="right")
    np.testing.assert_allclose(found, on_grid(columns)[:, interval], atol=1e-4)


def test_shape_is_kept_and_columns_come_first() -> None:
    table = Table(np.array([0.0, 1.0]), np.array([[3.0, 2.0, 1.0]]))
    assert np.asarray(table.look_up(np.array([[-1, 0], [0.5, 1]], np.float32))).tolist() == [[[3, 2], [2, 1]]]


def test_small_values_do_not_drown_in_large_ones() -> None:
    """From 512 down to 2^-12: sums of float32 from the large end would be off by more than the smallest value."""
    columns = np.exp2(np.linspace(9, -12, 64))[None]
    edges = np.arange(63, dtype=float)
    found = np.asarray(Table(edges, columns).look_up(np.arange(-1, 63, dtype=np.float32) + 0.5))
    np.testing.assert_allclose(found, on_grid(columns), rtol=1e-6)


@examples(15)
@given(st.floats(1e-7, 1e6))
def test_grid_is_fixed_point_and_no_coarser_than_sixteen_bits(value: float) -> None:
    rounded = float(on_grid(np.array(value)))
    assert rounded * 2**FRACTION_BITS == int(rounded * 2**FRACTION_BITS)
    assert abs(rounded - value) <= max(value * 2**-16, 2.0 ** -(FRACTION_BITS + 1))


def test_chords_keep_their_error_though_slopes_are_rounded() -> None:
    table = chords(lambda x: 1 / x, 0.1, 500, 2e-3)  # at 500 the slope is one unit of fixed point
    x = np.geomspace(0.1, 499, 5000)
    level, slope = table.columns[:, np.searchsorted(table.edges, x, side="right")]
    assert np.abs((level + slope * x) * x - 1).max() <= 2.1e-3
    np.testing.assert_array_equal(table.columns, on_grid(table.columns))
