from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

import jax

from cloister_mpc.functions.bundle import EXACT, LEAN, Functions


@pytest.mark.parametrize("functions", [LEAN, EXACT], ids=["lean", "exact"])
def test_both_bundles_compute_the_same_functions(functions: Functions) -> None:
    ordered = np.sort(np.abs(np.linspace(-20, 20, 401))).astype(np.float32)[:, None] / 8
    found = np.asarray(functions.ordered_silu(ordered, 200)) / 4
    np.testing.assert_allclose(found, np.asarray(jax.nn.silu(8 * ordered)), atol=0.013)
    squares = np.geomspace(1e-3, 1e3, 50).astype(np.float32)
    np.testing.assert_allclose(np.asarray(functions.rms_scale(squares)), squares**-0.5, rtol=6e-4)
