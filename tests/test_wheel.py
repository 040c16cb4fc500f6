"""The product as a wheel: it has all that the source has, and serves where nothing else is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.forkserver.model import save_model
from tests.served import running_server

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "cloister"
BUILT_FROM = ("pyproject.toml", "LICENSE", "src/cloister")


def run(*words: str | Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, words)), env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a copy: a build writes beside its source."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder / "dist", folder)
    [made] = (folder / "dist").glob("*.whl")
    return made


def test_it_has_every_file_of_the_source_unchanged(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("cloister/")}
        files = {f"cloister/{path.relative_to(SOURCE)}": path for path in SOURCE.rglob("*") if path.is_file()}
        files = {name: path for name, path in files.items() if "__pycache__" not in name}
        assert names == set(files)
        assert not [name for name, path in files.items() if archive.read(name) != path.read_bytes()]


def test_installed_elsewhere_it_runs_from_there(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path, wheel)
    found = run(sys.executable, "-P", "-c", "import cloister; print(cloister.__file__)", PYTHONPATH=str(tmp_path))
    assert Path(found.strip()).is_relative_to(tmp_path)
    assert "port = 8000" in run(sys.executable, "-P", "-m", "cloister", "config", PYTHONPATH=str(tmp_path))


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_in_an_empty_environment_it_serves(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    for what in ("torch==2.13.0", str(wheel)):
        run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", what)
    monkeypatch.setattr(sys, "executable", str(python))
    model = save_model(tmp_path / "model")
    with running_server(tmp_path / "log", "--model", str(model.path), "--dtype", "fp32", "--port", "0") as server:
        assert run(tmp_path / "empty" / "bin" / "cloister", "verify", server.url(), "--allow-software-tee")
