"""Imports between the packages of Cloister go one way: no circle, and what must not know of each other does not."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from tests.sources import tree_of

SOURCE = Path(__file__).parents[1] / "src" / "cloister"
EVERYBODY = {"errors", "config", "levels", "messages", "cores", "verify_mode"}

ALLOWED = {
    "errors": set(),
    "cores": set(),
    "config": {"errors", "levels", "cores", "verify_mode"},
    "verify_mode": {"errors"},
    "addresses": {"errors"},
    "levels": {"errors"},
    "request_fields": {"errors"},
    "responses": {"errors", "request_fields"},
    "grammar": {"errors"},
    "keys": EVERYBODY | {"addresses", "fairness", "files"},
    "checks": {"errors"},
    "files": {"errors"},
    "fairness": set(),
    "placement": set(),
    "messages": {"errors", "levels", "placement"},
    "process": EVERYBODY,
    "transparency": {"errors", "checks", "files"},
    "attest": {"errors", "checks", "files", "transparency"},
    "channel": {"errors"},
    "sealed_weights": {"errors", "files", "channel", "transparency"},
    "obfuscation": {"errors", "files", "request_fields", "detection"},
    "signed_text": {"errors", "files", "transparency"},
    "detection": {"errors", "files", "messages", "process", "signed_text", "transparency"},
    "client": EVERYBODY
    | {"access", "addresses", "files", "request_fields", "checks", "attest", "channel", "transparency", "obfuscation"}
    | {"responses", "grammar"},
    "backend": EVERYBODY,
}
"""Packages that may import these and no others."""

FORBIDDEN = {
    "compute": {"models", "prompts", "engine", "vault", "service", "controller", "gateway"},
    "models": {"prompts", "engine", "vault", "service", "controller", "gateway", "client", "cli"},
    "prompts": {"engine", "compute", "vault", "service", "controller", "gateway", "client", "cli"},
    "engine": {"vault", "controller", "gateway", "prompts", "channel", "attest", "client", "cli"},
    "prefix": {"engine", "vault", "service", "controller", "gateway", "channel", "attest", "client", "cli"},
    "link": {"engine", "vault", "service", "controller", "gateway", "prompts", "client", "cli"},
    "service": {"vault", "controller", "gateway", "prompts", "channel", "attest", "client", "cli"},
    "vault": {"service", "controller", "gateway", "attest", "client", "cli"},
    "attention": {"vault", "service", "controller", "gateway", "prompts", "channel", "attest", "client", "cli"},
    "gateway": {"controller", "vault", "service", "engine", "compute", "attest", "client", "cli"},
    "controller": {"gateway", "vault", "service", "engine", "compute", "prompts", "client", "cli"} | {"attention"},
}
"""Packages that may not import these."""


@cache
def imported_modules(tree: ast.AST) -> list[tuple[str, int]]:
    """Every module that is imported, with its line: at the top, inside functions and for the type checker alone."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(name.name, node.lineno) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they lead"
            assert node.module
            found += [(f"{node.module}.{name.name}", node.lineno) for name in node.names]
    return found


def package_graph() -> dict[str, dict[str, list[str]]]:
    """From package to package (or module right below cloister), with the lines that make it so."""
    names = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or path.is_dir()}
    graph: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(SOURCE.rglob("*.py")):
        place = file.relative_to(SOURCE)
        package = place.parts[0].removesuffix(".py")
        for module, line in imported_modules(tree_of(file)):
            parts = module.split(".")
            if parts[0] != "cloister" or len(parts) < 2 or parts[1] not in names - {package, "__init__"}:
                continue
            if package not in ("__init__", "__main__"):
                graph[package][parts[1]].append(f"{place}:{line}")
    return graph


GRAPH = package_graph()


def circle_from(start: str) -> list[str]:
    """The shortest way from a package back to itself; empty if there is none."""
    ways = [[start]]
    seen: set[str] = set()
    for way in ways:
        for following in GRAPH.get(way[-1], ()):
            if following == start:
                return [*way, start]
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return []


def test_there_is_no_circle_of_packages() -> None:
    circles = {frozenset(way): way for package in GRAPH if (way := circle_from(package))}
    shown = [
        f"{one} → {other}: {', '.join(GRAPH[one][other][:3])}"
        for way in circles.values()
        for one, other in pairwise(way)
    ]
    assert not circles, "\n".join(shown)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_it_may(package: str) -> None:
    strange = {other: lines for other, lines in GRAPH.get(package, {}).items() if other not in ALLOWED[package]}
    assert not strange


@pytest.mark.parametrize("package", FORBIDDEN)
def test_a_package_does_not_know(package: str) -> None:
    wrong = {other: lines for other, lines in GRAPH.get(package, {}).items() if other in FORBIDDEN[package]}
    assert not wrong


def test_the_product_imports_no_other_distribution() -> None:
    """Not inside a function either: a node's release measures `cloister` alone."""
    others = {path.name for path in SOURCE.parent.iterdir() if path.is_dir()} - {"cloister"}
    assert {"cloister_bench", "cloister_mpc"} <= others
    found = {
        f"{file.relative_to(SOURCE)}:{line}"
        for file in SOURCE.rglob("*.py")
        for module, line in imported_modules(tree_of(file))
        if module.split(".")[0] in others
    }
    assert not found


ON_SHARES = ("client", "party", "provider", "model", "cache", "functions")
"""Packages of `cloister_mpc` that compute or hold shares. They may run on machines without a node."""


@pytest.mark.parametrize("package", ON_SHARES)
def test_computing_on_shares_does_not_know_the_node(package: str) -> None:
    node = {"controller", "gateway", "service", "attest", "client", "cli"}
    wrong = {
        f"{file.name}:{line}"
        for file in (SOURCE.parent / "cloister_mpc" / package).rglob("*.py")
        for module, line in imported_modules(tree_of(file))
        if module.split(".")[0] == "cloister" and module.split(".")[1] in node
    }
    assert not wrong


def test_nobody_imports_the_commands() -> None:
    assert not {package: targets["cli"] for package, targets in GRAPH.items() if "cli" in targets}


def test_the_tables_name_packages_that_there_are() -> None:
    named = {*ALLOWED, *FORBIDDEN}.union(*ALLOWED.values(), *FORBIDDEN.values())
    there = {path.stem for path in SOURCE.iterdir()}
    assert named - there <= {"compute", "levels"}, "a package was renamed: name it anew in the tables"


def test_the_graph_is_read_from_the_source() -> None:
    assert "checks" in GRAPH["attest"] and "errors" in GRAPH["cli"], "the reader of imports finds none"


DETECTION_SURFACE = {
    "__main__",
    "checksums",
    "known_prefixes",
    "pipeline",
    "redaction",
    "signed_rules",
}
"""Modules of `detection` that other packages use."""


def test_other_packages_use_the_surface_of_detection_alone() -> None:
    for file in sorted(SOURCE.rglob("*.py")):
        if file.is_relative_to(SOURCE / "detection"):
            continue
        for module, line in imported_modules(tree_of(file)):
            parts = module.split(".")
            if parts[:2] == ["cloister", "detection"] and len(parts) > 2:
                assert parts[2] in DETECTION_SURFACE, f"{file.relative_to(SOURCE)}:{line}"


def test_the_services_loop_depends_on_the_contract_of_engines_alone() -> None:
    modules = {module for module, _ in imported_modules(tree_of(SOURCE / "service/process.py"))}
    assert {module for module in modules if module.startswith("cloister.engine")} == {
        "cloister.engine.base.Engine",
        "cloister.engine.base.EngineRequest",
    }
