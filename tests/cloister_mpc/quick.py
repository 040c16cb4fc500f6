"""Plain numbers are computed on arrays so small that compiling takes longest: XLA need not optimise what it compiles.

For a release it does. Programs for shares are compiled by SPU, which does not look at this.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def compile_quickly(request: pytest.FixtureRequest) -> Iterator[None]:
    jax = sys.modules.get("jax")  # where no test of the session needs it, it was not imported
    if jax is None or request.config.getoption("--release"):
        yield
        return
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
