from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="JAX is not installed: make mpc")

from cloister_mpc.functions.bundle import BUNDLES, NAIVE


@pytest.mark.parametrize("name", ["lean", "tuned", "naive"])
def test_all_bundles_compute_the_same_functions(name: str) -> None:
    functions, x = BUNDLES[name], np.linspace(-20, 20, 401).astype(np.float32)
    assert functions.name == name
    np.testing.assert_allclose(np.asarray(functions.silu(x)), np.asarray(NAIVE.silu(x)), atol=8e-3)
    ordered = np.sort(np.abs(x))[:, None] / 8
    np.testing.assert_allclose(
        np.asarray(functions.ordered_silu(ordered, 200)) / 4, np.asarray(NAIVE.silu(8 * ordered)), atol=0.013
    )
    np.testing.assert_allclose(np.asarray(functions.gelu(x)), np.asarray(NAIVE.gelu(x)), atol=5e-3)
    squares = np.geomspace(1e-3, 1e3, 50).astype(np.float32)
    np.testing.assert_allclose(np.asarray(functions.rms_scale(squares)), squares**-0.5, rtol=6e-4)
