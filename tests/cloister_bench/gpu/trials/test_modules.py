"""The trials find all they import, and say how they are called, where there is no GPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cloister_bench.gpu.trials import MODULES

AS_IF_INSTALLED = (
    "import importlib, sys; from unittest.mock import MagicMock;"
    "sys.modules |= {name: MagicMock() for name in ('cuda', 'cuda.core', 'cuda.bindings')};"
    "print(callable(getattr(importlib.import_module(sys.argv[1]), sys.argv[2])))"
)
PACKAGE = "cloister_bench.gpu.trials"


@pytest.mark.parametrize("trial", MODULES)
def test_a_trial_finds_all_it_imports(trial: str) -> None:
    command = [sys.executable, "-c", AS_IF_INSTALLED, f"{PACKAGE}.{MODULES[trial]}", trial]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and said.stdout == "True\n", said.stderr


def test_trials_say_how_they_are_called() -> None:
    said = subprocess.run([sys.executable, "-m", PACKAGE, "--help"], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert f"python -m {PACKAGE} " in said.stdout and "--json" in said.stdout
