"""Rows grow by batches: all of one or none, in a file for its owner alone."""

from __future__ import annotations

import sqlite3
from datetime import date
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.usage import KEPT_DAYS, Counts, Place, UsageFile, read_usage

TODAY = date(2026, 11, 19)
ANN, BOB = Place("2026-11-19", "ann", "open"), Place("2026-11-18", "bob", "partitioned")


def test_batches_add_up_in_a_file_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "new" / "usage.sqlite"
    UsageFile(path).add({ANN: Counts(1, 0, 10, 5), BOB: Counts(0, 1)}, TODAY)
    UsageFile(path).add({ANN: Counts(1, 2, 3, 4)}, TODAY)
    assert read_usage(path) == [(BOB, Counts(0, 1)), (ANN, Counts(2, 2, 13, 9))]
    assert read_usage(path, since="2026-11-19") == [(ANN, Counts(2, 2, 13, 9))] == read_usage(path, tenant="ann")
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_batch_that_fails_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.usage.PATIENCE_S", 0.0)
    file = UsageFile(tmp_path / "usage.sqlite")
    file.add({ANN: Counts(1)}, TODAY)
    broken = {ANN: Counts(1), BOB: Counts(2**70)}
    with pytest.raises((SetupError, OverflowError)):
        file.add(broken, TODAY)
    with sqlite3.connect(file.path) as locked:
        locked.execute("BEGIN EXCLUSIVE")
        with pytest.raises(SetupError, match="locked"):
            file.add({ANN: Counts(1)}, TODAY)
    assert read_usage(file.path) == [(ANN, Counts(1))]


def test_old_rows_go(tmp_path: Path) -> None:
    file = UsageFile(tmp_path / "usage.sqlite")
    file.add({ANN: Counts(1), BOB: Counts(1)}, TODAY)
    later = date.fromordinal(TODAY.toordinal() + KEPT_DAYS)
    file.add({Place(later.isoformat(), "ann", "open"): Counts(1)}, later)
    assert [place.day for place, _ in read_usage(file.path)] == ["2026-11-19", "2027-12-24"]


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "usage.sqlite"
    path.write_text("not a database, but long enough to be read as one" * 9)
    for use in (lambda: UsageFile(path), lambda: read_usage(path), lambda: read_usage(tmp_path / "none")):
        with pytest.raises(SetupError, match="cannot be used"):
            use()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="cannot be kept"):
        UsageFile(path)
    assert not (tmp_path / "elsewhere").exists()
