"""The atheris harness of `cloister.attest.tdx`, run briefly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import fuzz


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [600, pytest.param(80000, marks=pytest.mark.release)])
def test_verdict_or_typed_error_under_atheris(tmp_path: Path, runs: int) -> None:
    fuzz("tdx_quotes.py", runs, 2048, tmp_path)
