"""The atheris harness of the client's parsers, run briefly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import fuzz


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [5000, pytest.param(100000, marks=pytest.mark.release)])
def test_parsers_under_atheris(tmp_path: Path, runs: int) -> None:
    fuzz("client_parsers.py", runs, 2048, tmp_path)
