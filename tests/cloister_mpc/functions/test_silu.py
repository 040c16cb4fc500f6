from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

import jax

from cloister_mpc.functions.activations import CALM_WITHIN, ordered_silu, times


def exact(x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.nn.silu(x))


def of_ordered(x: np.ndarray, calm: int) -> np.ndarray:
    """Gates as their owner prepares them, and what the matrices around make of the result."""
    return np.asarray(ordered_silu(x.astype(np.float32) / 8, calm)) / 4


def test_calm_gates_are_close_within_their_range() -> None:
    x = np.linspace(-CALM_WITHIN, CALM_WITHIN, 2601)[:, None]
    away = np.abs(of_ordered(x, len(x)) - exact(x))
    for below, error in ((2, 0.0004), (4, 0.0014), (10, 0.013), (CALM_WITHIN, 0.038)):
        assert away[np.abs(x) <= below].max() <= error


def test_wild_gates_are_close_everywhere() -> None:
    x = np.linspace(-60, 60, 12_001)[:, None]
    away = np.abs(of_ordered(x, 0) - exact(x))
    assert away.max() <= 0.0018 and away[np.abs(x) < 4].max() <= 0.0009


def test_rows_keep_their_places_and_the_last_alone_have_tails() -> None:
    x = np.array([[1.0, -3], [2, 5], [40, -40], [-0.5, 12]])
    np.testing.assert_allclose(of_ordered(x, 2), exact(x), atol=0.003)
    assert np.abs(of_ordered(x, 3)[2] - exact(x)[2]).min() > 1000, "called calm, a wild gate is far off"


@pytest.mark.parametrize("count", [1, 2, 3, 12, 16])
def test_times(count: int) -> None:
    x = np.array([-1.5, 0, 2], np.float32)
    assert np.asarray(times(count, x)).tolist() == (count * x).tolist()
