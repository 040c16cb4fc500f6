"""What a newcomer sees when set-up cannot do its work: a sentence and a next step, never a traceback."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py, told that the checkout is an empty folder with the two files it hashes."""
    spec = importlib.util.spec_from_file_location("cloister_setup", ROOT / "scripts" / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(module, "CONSTRAINTS", tmp_path / "constraints.txt")
    return module


def make(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Inherited by a `make` that a test started; it would pass our own make's flags on.
    inherited = {key: value for key, value in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False)


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo Python 3.9.2; exit 0; }\nexit 1\n')
    old.chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    ran = make("serve", f"PYTHON={old}", cwd=tmp_path)
    assert ran.returncode != 0
    assert "needs Python 3.11 or newer" in ran.stderr and "Python 3.9.2" in ran.stderr
    assert "make serve PYTHON=" in ran.stderr and "Traceback" not in ran.stderr


def test_too_little_room_is_said_before_anything_is_installed(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.shutil, "disk_usage", lambda _: Usage(10**10, 9 * 10**9, 10**9))
    monkeypatch.setattr(setup, "run", lambda *command: pytest.fail(f"ran {command}"))
    assert setup.main([]) == 1
    assert "Too little room on the disk: 0.9 GB free, 3 GB needed" in capsys.readouterr().err


def test_a_python_without_venv_is_explained(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup.importlib.util, "find_spec", lambda name: None if name == "ensurepip" else object())
    assert setup.main([]) == 1
    assert "python3-venv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ERROR: No matching distribution found for torch==2.13.0", "No matching distribution found for torch==2.13.0"),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
    ],
)
def test_a_package_that_cannot_be_had_is_explained(
    setup: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
    expected: str,
) -> None:
    def run(*command: str) -> subprocess.CompletedProcess[str]:
        failed = "install" in command
        return subprocess.CompletedProcess(command, int(failed), "", output if failed else "")

    monkeypatch.setattr(setup, "run", run)
    assert setup.main(["--test"]) == 1
    said = capsys.readouterr()
    assert expected in said.err and "Traceback" not in said.err
    assert not list(setup.VENV.glob(".installed*")), "a failed set-up must be tried again"


def test_what_is_installed_is_left_alone_until_the_pins_change(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr(setup, "install", installed.append)
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    assert setup.main(["--test"]) == 0 and installed == ["test"]
    assert setup.main(["--test"]) == 0 and setup.main(["--mpc"]) == 0 and setup.main([]) == 0 and installed == ["test"]
    with setup.CONSTRAINTS.open("a") as constraints:
        constraints.write("some-package==1\n")
    assert setup.main([]) == 0 and setup.main(["--mpc"]) == 0 and installed == ["test", "runtime", "mpc"]


@pytest.mark.parametrize(
    ("which", "beside"),
    [
        ("runtime", []),
        ("mpc", ["cloister_mpc"]),
        ("bench", ["cloister_bench"]),
        ("vllm", ["cloister_vllm"]),
        ("test", ["pytest>=", "cloister_bench", "cloister_mpc", "cloister_vllm"]),
    ],
)
def test_the_checkout_is_what_runs_whatever_is_installed_beside_it(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, which: str, beside: list[str]
) -> None:
    """An install without -e would put a copy in its place."""
    installed: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "check_machine", lambda: None)
    monkeypatch.setattr(setup, "run", lambda *command: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(setup, "pip", lambda what, *arguments: installed.append(arguments))
    monkeypatch.setattr(setup, "FIRST_USE", "")
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    setup.install(which)
    rooted = [words for words in installed if words[-1].startswith(str(setup.ROOT))]
    ours = [words for words in rooted if words[-1] != str(setup.CONSTRAINTS)]
    assert [words[-2:] for words in ours] == [("-e", str(setup.ROOT))]
    asked = " ".join(word for words in installed for word in words)
    if sys.version_info >= (3, 12) and which == "test":
        beside = [name for name in beside if name != "cloister_mpc"]
    for name in (
        "pytest>=",
        *(f"-e {ROOT / 'src' / name}" for name in ("cloister_bench", "cloister_mpc", "cloister_vllm")),
    ):
        assert (name in asked) == any(each in name for each in beside)


def test_byte_code_is_kept_for_serving_whatever_the_environment_says(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(setup, "check_machine", lambda: None)
    monkeypatch.setattr(setup, "run", lambda *command: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(setup, "pip", lambda *_: None)
    said = tmp_path / "said"
    monkeypatch.setattr(setup, "FIRST_USE", f"import sys; open({str(said)!r}, 'w').write(str(sys.dont_write_bytecode))")
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    setup.install("runtime")
    assert said.read_text() == "False"


def test_who_stops_set_up_stops_the_conversion(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            started.append(self)

    def pip(what: str, *_: str) -> None:
        if started:
            raise KeyboardInterrupt

    monkeypatch.setattr(setup, "check_machine", lambda: None)
    monkeypatch.setattr(setup, "run", lambda *command: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(setup, "pip", pip)
    monkeypatch.setattr(setup, "FIRST_USE", "import signal; signal.pause()")
    monkeypatch.setattr(setup.subprocess, "Popen", Noted)
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    with pytest.raises(KeyboardInterrupt):
        setup.install("test")
    assert [conversion.wait(60) for conversion in started] == [-signal.SIGTERM]


def test_the_exact_pin_of_torch_is_one_and_the_same() -> None:
    pin = "torch==2.13.0"
    assert f'"{pin}"' in (ROOT / "pyproject.toml").read_text()
    assert pin in (ROOT / "constraints.txt").read_text().splitlines()
    assert f'"{pin}"' in (ROOT / "scripts" / "setup.py").read_text()


def test_help_lists_the_targets() -> None:
    listed = make("help", cwd=ROOT).stdout
    for target in ("setup", "mpc", "serve", "check", "test", "test-all", "lint", "bench", "clean"):
        assert f"make {target}" in listed
