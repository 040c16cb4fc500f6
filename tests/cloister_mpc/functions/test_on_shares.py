"""The lean functions on shares of three parties (ABY3, 18 bits of fraction): what they give, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")
pytest.importorskip("spu", reason="SPU is not installed: make mpc")

import jax

from cloister_mpc import shares
from cloister_mpc.functions import lookup
from tests.cloister_mpc.functions.on_shares import Outcome, cases, outcomes

UNIT = 2.0**-18


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return outcomes(tmp_path_factory.mktemp("shares"))


def test_tables_are_held_exactly_by_the_runtime() -> None:
    """With 16 bits of fraction, slopes of a few units would be lost: 1/sqrt(288) came out wrong by half."""
    assert shares.runtime_config().fxp_fraction_bits >= lookup.FRACTION_BITS


def test_ordered_gates(found: dict[str, Outcome]) -> None:
    x = 8 * cases()["ordered_silu"].inputs[0]
    away = np.abs(found["ordered_silu"].values / 4 - np.asarray(jax.nn.silu(x)))
    assert away[:56].max() < 0.04 and away[:56][np.abs(x[:56]) < 4].max() < 0.002
    assert away[56:].max() < 0.003, "the last rows are wild: their polynomial overflows the ring"


def test_root(found: dict[str, Outcome]) -> None:
    x = cases()["rms_scale"].inputs[0].astype(np.float64)
    rounding_of_input = UNIT / x  # relative; half of it reaches the result
    error = 6e-4 + rounding_of_input + 2 * UNIT * np.sqrt(x)
    assert np.all(np.abs(found["rms_scale"].values * np.sqrt(x) - 1) < error)


def test_division_over_all_denominators(found: dict[str, Outcome]) -> None:
    sums = cases()["divide"].inputs[0].astype(np.float64)
    rows, nothing = found["divide"].values[:-1], found["divide"].values[-1]
    expected = sums[:-1, :, :-1] / sums[:-1, :, -1:]
    rounding = 4 * UNIT / np.minimum(sums[:-1, :, -1:], 1)
    assert np.all(np.abs(rows - expected) < np.abs(expected) * 3e-4 + rounding + 1e-4)
    assert np.abs(nothing).max() < 1e-3


@pytest.mark.parametrize(("name", "error"), [("wide", 2e-3)])
def test_exponentials(found: dict[str, Outcome], name: str, error: float) -> None:
    x = cases()[name].inputs[0]
    weights, exact = found[name].values, np.exp(x.astype(np.float64))
    assert np.abs(weights / exact - 1)[x >= -2].max() < error
    assert np.abs(weights - exact)[x < -12].max() < 4 * UNIT, "far scores weigh nothing"


def test_offset_is_secret_and_subtracted(found: dict[str, Outcome]) -> None:
    scores, offset = cases()["weigh"].inputs
    near = (scores > -0.5) & (scores < 13)
    assert np.abs(found["weigh"].values / np.exp((scores - offset).astype(np.float64)) - 1)[near].max() < 3e-3


@pytest.mark.parametrize(
    ("name", "messages", "bytes_each"),
    [
        ("ordered_silu", 72, 260 + 328 / 8),
        ("rms_scale", 36, 30_300),
        ("divide", 66, 690),
        ("wide", 61, 392),
    ],
)
def test_cost(found: dict[str, Outcome], name: str, messages: int, bytes_each: int) -> None:
    """Messages of all parties together, which do not depend on sizes; bytes for each element of the input."""
    assert found[name].messages <= messages
    assert found[name].bytes <= bytes_each * cases()[name].inputs[0].size
