"""Sandboxes are tested in forks of this process, which must be free of libraries that start threads in them."""

from __future__ import annotations

import sys


def test_no_test_of_this_run_loaded_spu() -> None:
    assert "spu" not in sys.modules, "a test outside ON_SHARES (tests/conftest.py) loads SPU"
