"""The atheris harness of the client's parsers, run briefly."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parents[1] / "fuzz" / "client_parsers.py"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("runs", [5000, pytest.param(100000, marks=pytest.mark.release)])
def test_parsers_under_atheris(tmp_path: Path, runs: int) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed")
    run = subprocess.run(
        [sys.executable, str(HARNESS), f"-runs={runs}", "-seed=1", "-max_len=2048", f"-artifact_prefix={tmp_path}/"],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert f"Done {runs} runs" in run.stderr
