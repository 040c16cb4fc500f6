"""The tournament on shares: three parties as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")
pytest.importorskip("spu", reason="SPU is not installed: make mpc")

import jax.numpy as jnp
from spu import libspu
from spu.utils.simulation import Simulator, sim_jax

from cloister_mpc.functions.largest import FEW, LAST, largest
from cloister_mpc.functions.ring import fine, integers, numbers, settled, tracing_for_shares


@pytest.fixture(scope="module")
def on_shares() -> Callable[..., np.ndarray]:
    simulator = Simulator(3, libspu.RuntimeConfig(libspu.ProtocolKind.ABY3, libspu.FieldType.FM64, 18))

    def run(function: Callable[..., Any], *given: np.ndarray) -> np.ndarray:
        with tracing_for_shares():
            return np.asarray(sim_jax(simulator, function)(*given))

    return run


@pytest.mark.parametrize("count", [1, 2, LAST + 1, FEW + 5, 2 * FEW + 3])
def test_each_columns_largest_is_found(on_shares: Callable[..., np.ndarray], count: int) -> None:
    values = np.random.default_rng(count).uniform(-900, 900, (count, 2)).astype(np.float32)
    found = on_shares(lambda given: largest(fine(given)), values)
    assert found.tolist() == values.argmax(axis=0).tolist() == np.asarray(largest(values)).tolist()


def test_the_first_of_equal_ones_wins(on_shares: Callable[..., np.ndarray]) -> None:
    values = np.random.default_rng(0).integers(-1, 2, (300, 3)).astype(np.float32)
    assert on_shares(lambda given: largest(fine(given)), values).tolist() == values.argmax(axis=0).tolist()


def test_products_are_compared_with_noise_before_they_are_truncated(on_shares: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    matrix, columns, noise = rng.normal(size=(70, 16)), rng.normal(size=(16, 2)), rng.normal(size=(70, 2)) * 4

    def drawn(matrix: Any, columns: Any, noise: Any) -> Any:
        return largest(numbers(integers(matrix) @ integers(columns)) + fine(noise))

    given = [part.astype(np.float32) for part in (matrix, columns, noise)]
    assert on_shares(drawn, *given).tolist() == (matrix @ columns + noise).argmax(axis=0).tolist()


def test_fine_numbers_settle(on_shares: Callable[..., np.ndarray]) -> None:
    """Large ones too: a product with the constant itself was off by 4,096."""
    values = np.array([0, 2.0**-18, -1.5, 3000, -60_000], np.float32)
    heads = np.tile(values[:, None, None], (1, 1, 4))
    joined = on_shares(lambda *given: settled(jnp.concatenate([fine(part) for part in given])), heads, heads)
    np.testing.assert_allclose(joined, np.concatenate([heads, heads]), atol=2.0**-17)
    np.testing.assert_allclose(on_shares(lambda given: settled(fine(given)), values), values, atol=2.0**-17)
    squares = on_shares(lambda given: settled(numbers(integers(given) * integers(given))), values[:4])
    np.testing.assert_allclose(squares, values[:4] ** 2, atol=2.0**-4, rtol=1e-5)
