"""Processes held to a release: code planted beside it does not run, changed code ends them."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import py_compile
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import cloister
from cloister.process import interpreter
from cloister.process.release_code import FLAGS, digest_of, interpreter_files, interpreter_name, packages_in

OURS = ("__init__.py", "process/__init__.py", "process/interpreter.py", "process/release_code.py")
ENTRY = """
import thing
from cloister.process import interpreter

try:
    import unlisted
except ImportError:
    pass
{more}
interpreter.check_loaded()
print("ran", thing.VALUE, {value!r})
"""
PLANTED = "print('PLANTED')\nVALUE = 'planted'\n"
EXTENSION = Path(importlib.util.find_spec("_struct").origin)  # type: ignore[union-attr, arg-type]
"""Compiled code that any process can load."""
PYTHON = {interpreter_name(): digest_of(interpreter_files(), str(Path(os.__file__).parent))}


@dataclass
class Node:
    """A small source tree, a folder of packages and the release of both."""

    tree: Path
    packages: Path
    manifest: dict[str, object]
    more: str = ""

    @property
    def entry(self) -> Path:
        return self.tree / "cloister/entry.py"

    def start(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """`python -m cloister.entry`, held to the release; stdout, and the refusal on stderr."""
        told = {"manifest": json.dumps(self.manifest), "folders": [str(self.packages)]}
        note = interpreter.sealed_file("test", json.dumps(told).encode())
        script = str(self.tree / "cloister/process/release_code.py")
        command = [sys.executable, *FLAGS, script, str(note), "cloister.entry"]
        try:
            return subprocess.run(
                command, pass_fds=[note], env=variables, cwd=self.packages, capture_output=True, text=True, check=False
            )
        finally:
            os.close(note)

    def refused(self, why: str, **variables: str) -> None:
        said = self.start(**variables)
        assert said.returncode == 2 and said.stdout == "" and why in said.stderr, said


def install(folder: Path, name: str, *libraries: str, **files: str) -> None:
    """A package as pip would leave it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [f"{name}-1.0.dist-info/RECORD,,", f"../../bin/{name},sha256=AAAA,1", "__pycache__/x.pyc,,"]
    for path, text in files.items():
        (folder / f"{path}.py").write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        lines.append(f"{path}.py,sha256={digest},{len(text)}")
    for path in libraries:
        shutil.copyfile(EXTENSION, folder / path)
        digest = base64.urlsafe_b64encode(hashlib.sha256(EXTENSION.read_bytes()).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},1")
    (info / "RECORD").write_text("\n".join(lines) + "\n")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path)


def a_node(folder: Path, more: str = "") -> Node:
    source, tree, packages = Path(cloister.__file__).parent, folder / "src", folder / "packages"
    for name in OURS:
        (tree / "cloister" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, tree / "cloister" / name)
    (tree / "cloister/entry.py").write_text(ENTRY.format(more=more, value="as released"))
    install(packages, "thing", "library.so", thing="VALUE = 'good'\n")
    files = {
        f"src/{path.relative_to(tree)}": hashlib.sha256(path.read_bytes()).hexdigest() for path in tree.rglob("*.py")
    }
    found = {name: digest_of(each, str(packages)) for name, each in packages_in([str(packages)])}
    return Node(tree, packages, {"files": files, "packages": {**found, **PYTHON}})


def plant_compiled(source: Path) -> None:
    """Compiled code for this source that claims never to need a comparison with it (PEP 552, unchecked)."""
    evil = source.with_suffix(".evil")
    evil.write_text(PLANTED)
    cached = importlib.util.cache_from_source(str(source))
    py_compile.compile(str(evil), cached, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    evil.unlink()


def test_only_the_release_runs_whatever_lies_beside_it(node: Node, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("thing", "sitecustomize", "usercustomize"):
        (elsewhere / f"{name}.py").write_text(PLANTED)
    for name in ("sitecustomize", "csv"):
        (node.packages / f"{name}.py").write_text(PLANTED)
    (node.packages / "more.pth").write_text("import sys; print('PLANTED')\n")
    py_compile.compile(str(elsewhere / "thing.py"), str(node.packages / "unlisted.pyc"))
    plant_compiled(node.entry)
    plant_compiled(node.packages / "thing.py")
    said = node.start(HOME=str(elsewhere), PYTHONMALLOC="malloc")
    assert (said.returncode, said.stdout) == (0, "ran good as released\n"), said
    node.refused("PYTHONPATH is set", PYTHONPATH=str(elsewhere))
    node.refused("LD_PRELOAD is set", LD_PRELOAD="libm.so.6")
    plain = subprocess.run(
        [sys.executable, "-m", "cloister.entry"],
        env={"PYTHONPATH": f"{node.tree}:{node.packages}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PLANTED" in plain.stdout, "the control: Python itself runs what was planted"


def test_changed_code_is_refused(node: Node) -> None:
    node.entry.write_text(PLANTED)
    node.refused(f"{node.entry} is not of the release")


def test_a_changed_package_is_refused_whatever_its_record_says(node: Node) -> None:
    (node.packages / "thing.py").write_text(PLANTED)
    node.refused("thing.py is not of the release")
    install(node.packages, "thing", thing=PLANTED)
    node.refused("thing==1.0 is not as the release has it")


def test_a_module_nobody_named_is_refused_also_where_it_is_optional(node: Node) -> None:
    (node.packages / "unlisted.py").write_text(PLANTED)
    node.refused("unlisted.py is not of the release")
    install(node.packages, "unlisted", unlisted=PLANTED)
    node.refused("unlisted.py is not of the release")


def test_a_levels_code_runs_where_the_release_names_it_and_nowhere_else(tmp_path: Path) -> None:
    node = a_node(tmp_path, "import cloister_mpc; print(cloister_mpc.VALUE)")
    package = node.tree / "cloister_mpc" / "__init__.py"
    package.parent.mkdir()
    package.write_text("VALUE = 'on shares'\n")
    node.refused(f"{package} is not of the release")
    files: dict[str, str] = node.manifest["files"]  # type: ignore[assignment]
    files["src/cloister_mpc/__init__.py"] = hashlib.sha256(package.read_bytes()).hexdigest()
    said = node.start()
    assert (said.returncode, said.stdout) == (0, "on shares\nran good as released\n"), said
    package.write_text(PLANTED)
    node.refused(f"{package} is not of the release")


def test_another_python_and_a_release_without_packages_are_refused(node: Node) -> None:
    node.manifest["packages"] = {**node.manifest["packages"], interpreter_name(): "00" * 32}  # type: ignore[dict-item]
    node.refused(f"{interpreter_name()} is not as the release has it")
    del node.manifest["packages"]
    node.refused("does not say which packages")


def test_what_came_past_the_importer_is_seen(tmp_path: Path) -> None:
    by_path = tmp_path / "by_path.py"
    by_path.write_text("")
    more = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location("by_path", {str(by_path)!r})
sys.modules["by_path"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["by_path"])
"""
    a_node(tmp_path / "a", more).refused("by_path comes from")
    library = tmp_path / "library.so"
    shutil.copyfile(EXTENSION, library)
    more = f"import ctypes; ctypes.CDLL({str(library)!r})"
    a_node(tmp_path / "b", more).refused("library.so is not of the release")


def test_compiled_code_that_nobody_named_is_not_even_loaded(tmp_path: Path) -> None:
    node = a_node(tmp_path, "print('loaded')")
    shutil.copyfile(EXTENSION, node.packages / f"unlisted{EXTENSION_SUFFIXES[0]}")
    node.refused(f"unlisted{EXTENSION_SUFFIXES[0]} is not of the release")


def test_a_library_that_was_exchanged_since_it_was_loaded_is_seen(tmp_path: Path) -> None:
    library = str(tmp_path / "packages/library.so")
    load = f"import ctypes, os, shutil; ctypes.CDLL({library!r})"
    assert a_node(tmp_path, load).start().returncode == 0
    exchange = f"shutil.copyfile({library!r}, {library + '~'!r}); os.replace({library + '~'!r}, {library!r})"
    a_node(tmp_path, f"{load}; {exchange}").refused("library.so (deleted) is not of the release")


def test_a_package_is_the_same_wherever_and_however_it_was_installed(tmp_path: Path) -> None:
    for name in "ab":
        install(tmp_path / name, "thing", thing="VALUE = 1\n")
    record = tmp_path / "b/thing-1.0.dist-info/RECORD"
    lines = [*reversed(record.read_text().splitlines()), "thing-1.0.dist-info/INSTALLER,sha256=AAAA,3"]
    record.write_text("\n".join(lines))
    (one,), (other,) = ([*packages_in([str(tmp_path / name)])] for name in "ab")
    assert one[0] == other[0] == "thing==1.0"
    assert digest_of(one[1], str(tmp_path / "a")) == digest_of(other[1], str(tmp_path / "b"))


def test_the_lock_file_of_a_release_names_no_distribution_of_this_repository(tmp_path: Path) -> None:
    for name in ("cloister", "cloister_bench", "cloister_mpc", "thing"):
        install(tmp_path, name, **{name: "VALUE = 1\n"})
    assert [name for name, _ in packages_in([str(tmp_path)])] == ["thing==1.0"]


def test_what_a_held_process_starts_is_held_too(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from cloister.process.child import environment

    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    assert "PYTHONPATH" in environment() and interpreter.inherited() == []

    class Held:
        descriptor = 77

    monkeypatch.setattr("cloister.process.release_code.running", Held())
    command = interpreter.python("cloister.gateway", "5")
    assert command[-3:] == ["77", "cloister.gateway", "5"] and "-S" in command and interpreter.inherited() == [77]
    assert "PYTHONPATH" not in environment()
