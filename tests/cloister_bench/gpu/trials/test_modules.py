"""The trials find all they import, and say how they are called, where there is no GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cloister_bench.gpu.trials import MODULES

PACKAGE = "cloister_bench.gpu.trials"
AS_IF_INSTALLED = """
import importlib, json, sys, traceback
from unittest.mock import MagicMock

sys.modules |= {name: MagicMock() for name in ("cuda", "cuda.core", "cuda.bindings")}
wrong = {}
for trial, module in json.loads(sys.argv[1]).items():
    try:
        wrong[trial] = "" if callable(getattr(importlib.import_module(module), trial)) else "it cannot be called"
    except Exception:
        wrong[trial] = traceback.format_exc()
print(json.dumps(wrong))
"""


@pytest.fixture(scope="module")
def wrong() -> dict[str, str]:
    """By trial; one process imports all of them, for torch alone takes seconds."""
    modules = {trial: f"{PACKAGE}.{module}" for trial, module in MODULES.items()}
    command = [sys.executable, "-c", AS_IF_INSTALLED, json.dumps(modules)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    found: dict[str, str] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("trial", MODULES)
def test_a_trial_finds_all_it_imports(wrong: dict[str, str], trial: str) -> None:
    assert not wrong[trial]


def test_trials_say_how_they_are_called() -> None:
    said = subprocess.run([sys.executable, "-m", PACKAGE, "--help"], capture_output=True, text=True, timeout=120)
    assert said.returncode == 0, said.stderr
    assert f"python -m {PACKAGE} " in said.stdout and "--json" in said.stdout
