from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from cloister.compute import choose
from cloister.compute.cpu import library
from cloister.config import EngineSettings
from cloister.errors import SetupError
from cloister.process.release_code import ReleaseCode, mapped_files

needs_compiler = pytest.mark.skipif(library.find_compiler() is None, reason="no C compiler on this machine")


@pytest.fixture
def built() -> Path:
    """This machine's, in the cache folder that all use."""
    return library.build_library()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path))
    library.open_library.cache_clear()
    return tmp_path


@needs_compiler
def test_builds_once_and_the_same_bytes_anywhere(built: Path, own_cache: Path) -> None:
    first = library.build_library()
    stamp = first.stat().st_mtime_ns
    assert first.is_relative_to(own_cache)
    assert library.build_library() == first
    assert first.stat().st_mtime_ns == stamp
    assert [file.suffix for file in first.parent.iterdir()] == [".so"]
    assert first != built and first.read_bytes() == built.read_bytes(), "a release can name it by its hash"
    assert "-O3" in library.built_with()


def test_no_compiler_is_a_clear_error_or_the_reference(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_compiler", lambda: None)
    with pytest.raises(SetupError, match="compiler"):
        choose.choose_device(EngineSettings(kernels="native"))
    assert choose.choose_device(EngineSettings(kernels="auto")).kernels.name == "reference"


def test_a_compiler_that_fails_leaves_nothing_behind(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_compiler", lambda: ["false"])
    with pytest.raises(SetupError, match="do not compile"):
        library.build_library()
    assert not list((own_cache / "kernels").iterdir())


@needs_compiler
def test_what_was_measured_is_what_runs(built: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a release, without a compiler. The file in the cache folder is anybody's: it counts while it is read, and
    a release names what it may be."""
    file = own_cache / "kernels" / built.name
    file.parent.mkdir()
    shutil.copyfile(built, file)
    other = file.with_name(f"{file.stem[:-16]}{'0' * 16}.so")
    other.write_bytes(b"another compiler's")
    held = ReleaseCode.__new__(ReleaseCode)
    held.kernels = {hashlib.sha256(file.read_bytes()).hexdigest(): library.built_with()}
    monkeypatch.setattr("cloister.process.release_code.running", held)
    monkeypatch.setattr(library, "find_compiler", lambda: pytest.fail("looks for a compiler"))
    library.open_library()
    mapped = {path for path, _ in mapped_files()}
    assert str(file) not in mapped and any(path.startswith("/memfd:cloister-kernels") for path in mapped)
    library.open_library.cache_clear()
    file.write_bytes(file.read_bytes() + b"\0")
    with pytest.raises(SystemExit):
        library.open_library()
    file.unlink()
    with pytest.raises(SystemExit):
        library.open_library()
