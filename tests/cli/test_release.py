"""`cloister release`, as a shell sees it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloister.process import release_code
from cloister.transparency.log import Log
from cloister.transparency.note import SigningKey
from cloister.transparency.proof import prove_release, publish, write_proof
from tests.cli.conftest import Run
from tests.process.test_release_code import install

IMAGE = "sha256:" + "12" * 32


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    package = tmp_path / "tree" / "src" / "cloister"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('__version__ = "1.0"\n')
    (package / "engine.py").write_text("")
    (tmp_path / "tree" / "constraints.txt").write_text("numpy==2\n")
    return tmp_path / "tree"


@pytest.fixture
def release(run: Run, tree: Path, tmp_path: Path) -> Path:
    file = tmp_path / "release.json"
    assert run("release", "build", "--source", str(tree), "--out", str(file)).exit_code == 0
    return file


def test_build_prints_the_measurement_of_what_it_wrote(run: Run, tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "release.json"
    result = run("release", "build", "--source", str(tree), "--out", str(file))
    assert result.exit_code == 0
    assert result.stdout.strip() == hashlib.sha256(file.read_bytes()).hexdigest()
    again = run("release", "build", "--source", str(tree), "--out", str(tmp_path / "again.json"), "--json")
    told = json.loads(again.stdout)
    assert told["measurement"] == result.stdout.strip() and (told["version"], told["files"]) == ("1.0", 2)
    assert (tmp_path / "again.json").read_bytes() == file.read_bytes()


def test_an_image_is_part_of_the_release(run: Run, tree: Path, tmp_path: Path, release: Path) -> None:
    arguments = ("release", "build", "--source", str(tree), "--out", str(tmp_path / "image.json"), "--image")
    assert run(*arguments, IMAGE).stdout.strip() != hashlib.sha256(release.read_bytes()).hexdigest()
    assert json.loads((tmp_path / "image.json").read_bytes())["image"] == IMAGE
    wrong = run(*arguments, "latest")
    assert wrong.exit_code == 2 and "sha256:" in wrong.stderr


def test_what_runs_here_is_built_without_a_source(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "running.json"
    assert run("release", "build", "--out", str(file)).exit_code == 0
    assert "src/cloister/cli/log.py" in json.loads(file.read_bytes())["files"]


def test_the_code_of_the_level_mpc_is_named_on_request(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "running.json"
    for options, named in (((), False), (("--with-mpc",), True)):
        assert run("release", "build", "--out", str(file), *options).exit_code == 0
        assert ("src/cloister_mpc/level.py" in json.loads(file.read_bytes())["files"]) is named
        assert run("release", "check", str(file)).exit_code == 0


def test_check_says_whether_a_tree_is_the_release(run: Run, tree: Path, release: Path) -> None:
    good = run("release", "check", str(release), "--source", str(tree))
    assert good.exit_code == 0 and "PASS  source" in good.stdout
    (tree / "src/cloister/engine.py").write_text("changed")
    bad = run("release", "check", str(release), "--source", str(tree), "--json")
    assert bad.exit_code == 1
    told = json.loads(bad.stdout)
    assert told["verdict"] == "fail" and "engine.py is another" in told["checks"][0]["reason"]
    running = run("release", "check", str(release))
    assert running.exit_code == 1 and "more" in running.stdout


def test_check_verifies_a_proof(run: Run, tree: Path, release: Path, tmp_path: Path) -> None:
    key = SigningKey.generate("log.example")
    log = Log.create(tmp_path / "log", key)
    publish(log, release.read_bytes(), key)
    proof = tmp_path / "proof.json"
    proof.write_bytes(write_proof(prove_release(log.folder, release.read_bytes())))
    check = ("release", "check", str(release), "--source", str(tree), "--proof", str(proof))
    assert run(*check).exit_code == 2
    good = run(*check, "--log-key", str(key.verifier))
    assert good.exit_code == 0 and "PASS  log inclusion" in good.stdout
    other = run(*check, "--log-key", str(SigningKey.generate("log.example").verifier))
    assert other.exit_code == 1 and "FAIL  log checkpoint" in other.stdout
    # Seen earlier with more entries than now: rolled back.
    publish(log, release.read_bytes().replace(b'"1.0"', b'"1.1"'), key)
    seen = tmp_path / "seen"
    seen.write_text(str(log.signed))
    rolled = run(*check, "--log-key", str(key.verifier), "--seen", str(seen))
    assert rolled.exit_code == 1 and "rolled back" in rolled.stdout


@pytest.mark.parametrize(("content", "code"), [(b"", 1), (b"{}", 1), (b"\xff" * 10, 1), (b" " * 300_000, 1), (None, 2)])
def test_what_is_no_manifest_is_an_error_without_a_traceback(
    run: Run, tmp_path: Path, content: bytes | None, code: int
) -> None:
    file = tmp_path / "release.json"
    if content is not None:
        file.write_bytes(content)
    result = run("release", "check", str(file))
    assert result.exit_code == code and result.stderr.startswith("Error: ") and "Traceback" not in result.output


def test_a_folder_that_cannot_be_built_says_what_to_do(run: Run, tmp_path: Path, tree: Path) -> None:
    result = run("release", "build", "--source", str(tmp_path), "--out", str(tmp_path / "out"))
    assert result.exit_code == 2 and "src/cloister" in result.stderr
    unwritable = run("release", "build", "--source", str(tree), "--out", str(tmp_path / "no" / "folder"))
    assert unwritable.exit_code == 2 and "cannot be written" in unwritable.stderr


@pytest.mark.parametrize("command", ["build", "check"])
def test_help_has_examples(run: Run, command: str) -> None:
    result = run("release", command, "--help")
    assert result.exit_code == 0 and f"cloister release {command}" in result.stdout and "--json" in result.stdout


def test_two_builds_give_one_hash(tmp_path: Path) -> None:
    """In two folders, in another order of files, by processes with other times, masks, languages and hash seeds."""
    found = set()
    for number, seed, language, mask in ((1, "1", "C", 0o022), (2, "77", "C.UTF-8", 0o077)):
        tree = tmp_path / f"tree {number}"
        names = ["src/cloister/__init__.py", "src/cloister/b/ä.py", "src/cloister/a.py", "pyproject.toml"]
        for name in names if number == 1 else reversed(names):
            file = tree / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text('__version__ = "1.0"\n')
            file.chmod(0o666 & ~mask)
            os.utime(file, (number, number))
        (tree / "packages.lock").write_text(f"thing==1.0 sha256:{'ab' * 32}\n")
        out = tree / "release.json"
        arguments = ["--source", str(tree), "--packages", str(tree / "packages.lock"), "--out", str(out)]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": language, "TZ": f"UTC+{number}"}
        command = [sys.executable, "-m", "cloister", "release", "build", *arguments]
        built = subprocess.run(command, env=environment, umask=mask, capture_output=True, text=True, check=True)
        found.add((built.stdout, out.read_bytes()))
    assert len(found) == 1 and b'"thing==1.0"' in out.read_bytes()


def test_a_release_says_what_it_runs_with_and_what_is_installed_is_compared(
    run: Run, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_code, "changed_files", list)
    lock, file = tmp_path / "packages.lock", tmp_path / "release.json"
    assert run("release", "lock", "--no-kernels", "--out", str(lock)).exit_code == 0
    assert f"{release_code.interpreter_name()} sha256:" in lock.read_text() and "torch==" in lock.read_text()
    assert run("release", "build", "--packages", str(lock), "--out", str(file)).exit_code == 0
    assert run("release", "check", str(file)).exit_code == 0
    other = json.loads(file.read_bytes())["packages"]
    monkeypatch.setattr(release_code, "installed", lambda: {**other, next(iter(other)): "00" * 32})
    found = run("release", "check", str(file))
    assert found.exit_code == 1 and f"{next(iter(other))} is another" in found.stdout
    lock.write_text("torch==1\n")
    wrong = run("release", "build", "--source", str(tree), "--packages", str(lock), "--out", str(file))
    assert wrong.exit_code == 2 and "Line 1" in wrong.stderr


def test_nothing_is_locked_that_its_package_does_not_know(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "packages", "thing", thing="VALUE = 1\n")
    monkeypatch.setattr(release_code, "package_folders", lambda: [str(tmp_path / "packages")])
    assert release_code.changed_files() == []
    (tmp_path / "packages/thing.py").write_text("VALUE = 2\n")
    refused = run("release", "lock", "--no-kernels", "--out", str(tmp_path / "packages.lock"))
    assert refused.exit_code == 2 and "thing.py" in refused.stderr and not (tmp_path / "packages.lock").exists()
