"""The trials find all they import, and say how they are called, where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cloister_bench.gpu.trials

AS_IF_INSTALLED = (
    "import runpy, sys; from unittest.mock import MagicMock;"
    "sys.modules |= {name: MagicMock() for name in ('cuda', 'cuda.core', 'cuda.bindings')};"
    "module = sys.argv[1]; sys.argv = [module, '--help']; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
PACKAGE = "cloister_bench.gpu.trials"
MODULES = sorted(
    f"{PACKAGE}.{path.stem}".removesuffix(".__main__")
    for path in Path(cloister_bench.gpu.trials.__path__[0]).glob("*.py")
    if "__main__" in path.read_text()
)


def test_there_are_trials() -> None:
    assert [PACKAGE, *(f"{PACKAGE}.{name}" for name in ("check", "evidence", "serve", "weights"))] == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_trial_says_how_it_is_called(module: str) -> None:
    command = [sys.executable, "-c", AS_IF_INSTALLED, module]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert f"python -m {module} " in said.stdout and "--json" in said.stdout
