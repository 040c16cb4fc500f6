"""The device contracts are real: a device without C serves a partitioned request, and nothing else knows C."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cloister

SOURCE = Path(cloister.__file__).parent
ROOT = Path(__file__).parents[2]
COMPUTING = ("attention", "compute", "engine", "service", "vault")
"""Packages that compute on a device. Of models, sealed.py alone maps a file by hand; it knows no C structures."""

WITHOUT_CPU = (
    "import sys; sys.modules['cloister.compute.cpu'] = None; from tests.compute.on_fake_device import main; main()"
)


def test_a_device_of_pipes_serves_a_partitioned_request_as_it_serves_an_open_one() -> None:
    """With compute.cpu impossible to import: the same tokens and logprobs, and every layer of every step was asked."""
    command = [sys.executable, "-c", WITHOUT_CPU]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads(run.stdout)
    assert len(found["open"]) == 6
    assert found["partitioned"] == found["open"]
    assert found["questions"] == 2 * 5  # two layers; the first of six tokens is the vault's


def modules_under(*packages: str) -> Iterator[tuple[str, str]]:
    for package in packages:
        for path in sorted((SOURCE / package).rglob("*.py")):
            yield path.relative_to(SOURCE).as_posix(), path.read_text()


@cache
def imported_by(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_devices_own_packages_know_ctypes() -> None:
    knowing = {name for name, text in modules_under(*COMPUTING, "models") if "ctypes" in imported_by(text)}
    knowing.discard("models/sealed.py")
    assert knowing and all(name.startswith(("compute/cpu/", "compute/gpu/")) for name in knowing)


def test_only_the_choice_of_a_device_names_one() -> None:
    inside = "compute/cpu/"
    named = {name for name, text in modules_under(".") if "NativeKernels" in text and not name.startswith(inside)}
    assert named == {"compute/choose.py"}
    used = {
        name
        for name, text in modules_under(".")
        if not name.startswith(inside)
        and "compute" in text
        and any(one.startswith("cloister.compute.cpu") for one in imported_by(text))
    }
    assert used == {"compute/choose.py"}


def test_computing_never_reaches_up() -> None:
    """Devices know neither models, sequences nor processes; of links, only their memory and its shape. What loads
    kernels asks whether a release names them, and what makes them writes files."""
    aware = {
        "compute/prebuilt.py": {"process"},
        "compute/cpu/library.py": {"process"},
        "compute/gpu/find.py": {"files"},
    }
    allowed = {"compute", "config", "cores", "errors", "link", "placement"}
    for name, text in modules_under("compute"):
        used = {one.split(".")[1] for one in imported_by(text) if one.startswith("cloister.")}
        assert used <= allowed | aware.get(name, set()), (name, used - allowed)
