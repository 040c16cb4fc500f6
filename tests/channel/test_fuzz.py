"""The atheris harness of the channel's decoders, run briefly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.harness import fuzz


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [5000, pytest.param(100000, marks=pytest.mark.release)])
def test_decoders_under_atheris(tmp_path: Path, runs: int) -> None:
    fuzz("transport_decoders.py", runs, 4096, tmp_path)
