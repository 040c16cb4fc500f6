from __future__ import annotations

from pathlib import Path

import pytest

from cloister.compute import choose
from cloister.compute.cpu import library
from cloister.config import EngineSettings
from cloister.errors import SetupError


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path))
    library.open_library.cache_clear()
    return tmp_path


@pytest.mark.skipif(library.find_compiler() is None, reason="no C compiler on this machine")
def test_builds_once(own_cache: Path) -> None:
    first = library.build_library()
    stamp = first.stat().st_mtime_ns
    assert first.is_relative_to(own_cache)
    assert library.build_library() == first
    assert first.stat().st_mtime_ns == stamp
    assert [file.suffix for file in first.parent.iterdir()] == [".so"]


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
