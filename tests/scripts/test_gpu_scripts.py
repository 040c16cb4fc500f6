"""The scripts for a GPU machine find all they import, and say how they are called, where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
AS_IF_INSTALLED = (
    "import runpy, sys; from unittest.mock import MagicMock;"
    "sys.modules |= {name: MagicMock() for name in ('cuda', 'cuda.core', 'cuda.bindings')};"
    "sys.argv = [sys.argv[1], '--help']; runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("gpu_*.py")))
def test_a_script_says_how_it_is_called(script: str) -> None:
    command = [sys.executable, "-c", AS_IF_INSTALLED, str(SCRIPTS / script)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert f"python scripts/{script}" in said.stdout and "--json" in said.stdout
