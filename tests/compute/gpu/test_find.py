"""Kernels for a GPU: compiled here, or under a release taken from a file that it names. No GPU is needed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from cloister.compute.gpu import find
from cloister.process.release_code import ReleaseCode

CUBIN, ARCH = b"machine code", "sm_90a"


@pytest.fixture(autouse=True)
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_CACHE", str(tmp_path))
    monkeypatch.setattr(find.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(find.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(find, "compiled", lambda arch, dim: CUBIN + bytes([dim]))


def test_under_a_release_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = find.ask()
    assert here.architecture == ARCH and here.code == {dim: CUBIN + bytes([dim]) for dim in find.DIMS}
    monkeypatch.setattr(find, "find", lambda: here)
    written = find.write_kernels()
    release = ReleaseCode.__new__(ReleaseCode)
    release.kernels = {hashlib.sha256(file.read_bytes()).hexdigest(): built for file, built in written.items()}
    monkeypatch.setattr("cloister.process.release_code.running", release)
    monkeypatch.setattr(find, "compiled", lambda arch, dim: pytest.fail("compiled under a release"))
    assert find.ask() == here
    file = next(iter(written))
    file.write_bytes(file.read_bytes() + b"\0")
    assert "names no kernels" in find.ask().refusal


def test_without_a_gpu_there_is_nothing_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "find", lambda: find.Found("This machine has no NVIDIA GPU."))
    assert find.write_kernels() == {} and not list(tmp_path.iterdir())
