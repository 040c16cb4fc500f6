"""The books lose nothing and count nothing twice while the disk fails now and then; no one waits for it."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.controller import books as module
from cloister.controller.books import OTHERS, Books
from cloister.usage import ALL_LEVELS, Counts, Place, read_usage

NOW = 1_795_000_000.0
DAY = "2026-11-18"
STEPS = st.lists(st.one_of(st.integers(0, 5), st.sampled_from(["write", "write while locked", "restart"])), max_size=40)


async def kept(steps: list[int | str], path: Path) -> tuple[Counter[str], Counter[str]]:
    added: Counter[str] = Counter()
    books = Books(lambda: NOW)
    books.open_file(path)
    for step in steps:
        if isinstance(step, int):
            books.add(Place(DAY, f"t{step % 3}", "open"), Counts(1, 0, step, 1))
            added[f"t{step % 3}"] += 1
        elif step == "restart":
            await books.close()
            books = Books(lambda: NOW)
            books.open_file(path)
        elif step == "write":
            await books.write()
        else:
            with sqlite3.connect(path) as locked:
                locked.execute("BEGIN EXCLUSIVE")
                await books.write()
    await books.close()
    return added, Counter({place.tenant: counts.requests for place, counts in read_usage(path)})


@given(steps=STEPS)
def test_what_is_added_is_in_the_file_once(steps: list[int | str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.usage.PATIENCE_S", 0.0)
        added, found = asyncio.run(kept(steps, Path(folder, "usage.sqlite")))
    assert added == found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with sqlite3.connect(path) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def full(path: Path) -> Iterator[None]:
    """SQLite's own limit gives the error of a full disk."""
    connect = sqlite3.connect

    def limited(*given: Any, **named: Any) -> sqlite3.Connection:
        database = connect(*given, **named)
        database.execute("PRAGMA max_page_count = 1")
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cloister.usage.sqlite3.connect", limited)
        yield


@pytest.mark.parametrize(("trouble", "said"), [(locked, "locked"), (full, "full")])
async def test_a_disk_that_fails_is_one_line_and_its_return_another(
    trouble: Any, said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloister.usage.PATIENCE_S", 0.0)
    path = tmp_path / "usage.sqlite"
    books = Books(lambda: NOW)
    books.open_file(path)
    count = 3 * 200  # more than the file has room for
    with trouble(path):
        for number in range(count):
            books.add(Place(DAY, f"tenant-{number % 200}", "open"), Counts(1))
            if number % 200 == 199:
                await books.write()
    assert caplog.text.count(f"is {said}") == 1 and "tenant-" not in caplog.text and not read_usage(path)
    await books.close()
    assert caplog.text.count("written again") == 1
    assert [counts.requests for _, counts in read_usage(path)] == [3] * 200


async def test_it_writes_by_itself_and_knows_today_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)
    path = tmp_path / "usage.sqlite"
    books = Books(lambda: NOW)
    assert books.open_file(path) == {}
    books.add(Place("2026-11-17", "ann", "open"), Counts(5, 0, 5, 5))
    for level in ("open", "partitioned"):
        books.add(Place(DAY, "ann", level), Counts(1, 1, 10, 20))
    async with asyncio.timeout(5):
        while len(read_usage(path)) < 3:
            await asyncio.sleep(0.01)
    # Not closed: as after kill -9.
    assert Books(lambda: NOW).open_file(path) == {"ann": (60, 2)}
    await books.close()
    assert len(read_usage(path)) == 3


async def test_the_memory_that_waits_for_a_disk_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    books = Books(lambda: NOW)
    books.open_file(tmp_path / "usage.sqlite")
    for number in range(9):
        books.add(Place(DAY, f"t{number}", "open"), Counts(1))
    await books.close()
    rows = {place.tenant: counts.requests for place, counts in read_usage(tmp_path / "usage.sqlite")}
    assert rows == {"t0": 1, "t1": 1, OTHERS: 7}
    assert {place.level for place, _ in read_usage(tmp_path / "usage.sqlite", tenant=OTHERS)} == {ALL_LEVELS}


async def test_without_a_file_nothing_is_kept() -> None:
    books = Books(lambda: NOW)
    books.add(Place(DAY, "ann", "open"), Counts(1))
    assert not books._pending
    await books.close()
