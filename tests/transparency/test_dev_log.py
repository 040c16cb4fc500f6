"""A node without a release has a log of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.transparency import proof as dev_log
from cloister.transparency.checkpoint import ReleaseTrust
from cloister.transparency.log import Log
from cloister.transparency.manifest import measure_running, measurement, read_manifest
from cloister.transparency.note import VerifierKey
from cloister.transparency.proof import ORIGIN_PREFIX, development_release, verify_release
from cloister.transparency.witness import audit
from tests.transparency.node import NOON, manifest


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What runs, to be changed by the test."""
    manifests = [manifest(1)]
    monkeypatch.setattr(dev_log, "measure_running", lambda also: read_manifest(manifests[-1]))
    return manifests


def test_what_runs_is_measured_and_proved(tmp_path: Path) -> None:
    release = development_release(tmp_path / "dev")
    assert read_manifest(release.manifest).version == measure_running().version
    trusted = ReleaseTrust(logs=(release.log_key,))
    assert verify_release(release.prove(), release.measurement, at=NOON, trusted=trusted, seen=None).passed


def test_key_and_log_are_kept_and_grow_only_with_the_source(tmp_path: Path, running: list[bytes]) -> None:
    first = development_release(tmp_path / "dev")
    assert (tmp_path / "dev" / "log.key").stat().st_mode & 0o777 == 0o600
    assert VerifierKey.parse(first.log_key).name.startswith(ORIGIN_PREFIX)
    assert development_release(tmp_path / "dev") == first
    assert Log.open(first.log_dir).checkpoint.size == 1
    seen = Log.open(first.log_dir).checkpoint
    running.append(manifest(2))
    second = development_release(tmp_path / "dev")
    assert second.log_key == first.log_key and second.measurement == measurement(manifest(2))
    trusted = ReleaseTrust(logs=(first.log_key,))
    assert verify_release(second.prove(1), second.measurement, at=NOON, trusted=trusted, seen=seen).passed
    assert audit(second.log_dir, trusted=trusted, earlier=seen).passed


def test_two_machines_have_two_logs(tmp_path: Path, running: list[bytes]) -> None:
    assert development_release(tmp_path / "a").log_key != development_release(tmp_path / "b").log_key


def test_a_start_that_was_cut_short_is_finished(tmp_path: Path, running: list[bytes]) -> None:
    release = development_release(tmp_path / "dev")
    shutil.rmtree(release.log_dir)
    assert development_release(tmp_path / "dev").log_key == release.log_key
    shutil.rmtree(release.log_dir)
    release.log_dir.mkdir()
    (release.log_dir / "vkey").write_text(release.log_key + "\n")
    assert development_release(tmp_path / "dev").log_key == release.log_key


@pytest.mark.parametrize("lost", ["log.key", "log/checkpoint", "log/tile/0/000.p/1"])
def test_a_damaged_development_log_says_what_to_do(tmp_path: Path, running: list[bytes], lost: str) -> None:
    release = development_release(tmp_path / "dev")
    (tmp_path / "dev" / lost).unlink()
    running.append(manifest(2))
    with pytest.raises(SetupError) as refusal:
        development_release(tmp_path / "dev")
    assert refusal.value.hint is not None and "Remove" in refusal.value.hint
    shutil.rmtree(tmp_path / "dev")
    assert development_release(tmp_path / "dev").log_key != release.log_key
