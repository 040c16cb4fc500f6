"""The file of `cloister usage`: counts by day, tenant and level, in SQLite. No finer time, no id, no content."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from datetime import date
from pathlib import Path

from cloister.errors import SetupError
from cloister.files import make_folder, needed

FILE = "usage.sqlite"  # in the data folder, where none is named
ALL_LEVELS = "all"
KEPT_DAYS = 400
PATIENCE_S = 2.0
_COLUMNS = "day TEXT, tenant TEXT, level TEXT, requests INT, refused INT, prompt_tokens INT, completion_tokens INT"
_MAKE = f"CREATE TABLE IF NOT EXISTS usage ({_COLUMNS}, PRIMARY KEY (day, tenant, level)) WITHOUT ROWID"
_NAMES = ("requests", "refused", "prompt_tokens", "completion_tokens")
_SUMS = ", ".join(f"{each} = {each} + excluded.{each}" for each in _NAMES)
_ADD = f"INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET {_SUMS}"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A row's key. `day` in UTC, as YYYY-MM-DD."""

    day: str
    tenant: str
    level: str


@dataclass(slots=True)
class Counts:
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __iadd__(self, other: "Counts") -> "Counts":
        for name in _NAMES:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self


class UsageFile:
    """Additions to rows, all of a batch or none of it. SetupError where the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with needed(f"Usage cannot be kept in {path}", "Name another file with --usage."):
            make_folder(path.parent, mode=0o700)
            # It stays open: `cloister audit` searches all files that a node's processes hold open for writing.
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with self._opened() as database:
            database.execute(_MAKE)

    def add(self, batch: Mapping[Place, Counts], today: date) -> None:
        """The disk has the batch when this returns; rows that are older than KEPT_DAYS go."""
        oldest = date.fromordinal(today.toordinal() - KEPT_DAYS).isoformat()
        with self._opened() as database:
            database.executemany(_ADD, [(*astuple(place), *astuple(counts)) for place, counts in batch.items()])
            database.execute("DELETE FROM usage WHERE day < ?", (oldest,))

    def close(self) -> None:
        os.close(self._held)  # not earlier: SQLite's locks of a process end when it closes any descriptor of the file

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        with connected(self.path) as database, database:  # the inner one commits, or rolls back
            yield database


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """To an existing file."""
    try:
        address = f"{path.absolute().as_uri()}?mode=rw"  # SQLite reads one that it may not write
        with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE_S)) as database:
            yield database
    except sqlite3.Error as wrong:
        hint = "See that it is a usage file of this version, that its disk has room, and who owns it."
        raise SetupError(f"The usage file {path} cannot be used ({wrong}).", hint=hint) from None


def read_usage(path: Path, since: str = "", tenant: str | None = None) -> list[tuple[Place, Counts]]:
    """By day, tenant and level."""
    columns = f"day, tenant, level, {', '.join(_NAMES)}"
    chosen = f"SELECT {columns} FROM usage WHERE day >= ? AND (? IS NULL OR tenant = ?) ORDER BY day, tenant, level"
    with connected(path) as database:
        return [(Place(*row[:3]), Counts(*row[3:])) for row in database.execute(chosen, (since, tenant, tenant))]
