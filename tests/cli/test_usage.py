"""`cloister usage` shows what the file has, as a table and as JSON."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from cloister.usage import Counts, Place, UsageFile
from tests.cli.conftest import Run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = UsageFile(tmp_path / "usage.sqlite")
    rows = {
        Place("2026-11-17", "ann", "open"): Counts(1, 0, 10, 5),
        Place("2026-11-18", "ann", "partitioned"): Counts(2, 3, 40, 6),
        Place("2026-11-18", "bob", "open"): Counts(0, 7),
    }
    file.add(rows, date(2026, 11, 18))
    file.close()
    return file.path


def test_a_table_has_a_row_for_each_tenant_day_and_level_and_their_total(run: Run, path: Path) -> None:
    lines = [line.split() for line in run("usage", "--usage", str(path)).stdout.splitlines()]
    assert lines[1:] == [
        ["2026-11-17", "ann", "open", "1", "0", "10", "5"],
        ["2026-11-18", "ann", "partitioned", "2", "3", "40", "6"],
        ["2026-11-18", "bob", "open", "0", "7", "0", "0"],
        ["total", "3", "10", "50", "11"],
    ]


def test_json_has_the_rows_that_are_chosen(run: Run, path: Path) -> None:
    shown = json.loads(run("usage", "--usage", str(path), "--since", "2026-11-18", "--tenant", "ann", "--json").stdout)
    counts = {"requests": 2, "refused": 3, "prompt_tokens": 40, "completion_tokens": 6}
    row = {"day": "2026-11-18", "tenant": "ann", "level": "partitioned", **counts}
    assert shown == {"usage": [row], "total": counts}


def test_the_file_of_the_data_folder_is_the_default(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_DATA", str(path.parent))
    assert "partitioned" in run("usage").stdout


def test_what_cannot_be_shown_says_what_to_do(run: Run, path: Path) -> None:
    missing = run("usage", "--usage", str(path.with_name("none")))
    assert missing.exit_code == 2 and "cloister serve --usage FILE" in missing.stderr
    assert not path.with_name("none").exists()
    wrong = run("usage", "--usage", str(path), "--since", "yesterday")
    assert wrong.exit_code == 2 and "2026-11-01" in wrong.stderr
