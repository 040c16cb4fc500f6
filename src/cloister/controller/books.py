"""What tenants used, in memory until a thread writes it: no request waits for the disk, and none fails with it."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from time import time

from cloister.errors import CloisterError, where_raised
from cloister.usage import ALL_LEVELS, Counts, Place, UsageFile, read_usage

log = logging.getLogger(__name__)
EVERY_S = 10.0
MOST_ROWS = 65_536  # that wait for a disk; counts for more go to one row of a day
OTHERS = "(others)"


class Books:
    """A batch leaves the memory when the disk has it. What a killed node forgets is at most one batch."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._file: UsageFile | None = None
        self._pending: dict[Place, Counts] = {}
        self._writing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._failed = False

    @property
    def open(self) -> bool:
        return self._file is not None

    def open_file(self, path: Path) -> dict[str, tuple[int, int]]:
        """Tokens and requests of today by tenant, as the file has them."""
        self._file = UsageFile(path)
        used: dict[str, tuple[int, int]] = {}
        for place, counts in read_usage(path, self._today().isoformat()):
            tokens, requests = used.get(place.tenant, (0, 0))
            more = counts.prompt_tokens + counts.completion_tokens
            used[place.tenant] = tokens + more, requests + counts.requests
        return used

    def add(self, place: Place, counts: Counts) -> None:
        if self._file is None:
            return
        self._note(place, counts)
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_in_turn())

    async def close(self) -> None:
        self._closing.set()
        if self._writing is not None:
            await self._writing
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _write_in_turn(self) -> None:
        closing = False
        while not closing:
            with suppress(TimeoutError):
                closing = await asyncio.wait_for(self._closing.wait(), EVERY_S)
            await self.write()

    async def write(self) -> None:
        """One line in the log when this begins to fail, and one when it works again."""
        if self._file is None or not self._pending:
            return
        batch, self._pending = self._pending, {}
        try:
            await asyncio.to_thread(self._file.add, batch, self._today())
        except Exception as wrong:  # no reason may end the writing
            came, self._pending = self._pending, batch
            for place, counts in came.items():
                self._note(place, counts)
            if not self._failed:
                why = wrong if isinstance(wrong, CloisterError) else where_raised(wrong)
                log.error("%s Counts wait in memory; requests and quotas go on.", why)
            self._failed = True
        else:
            if self._failed:
                log.warning("The usage file is written again.")
            self._failed = False

    def _note(self, place: Place, counts: Counts) -> None:
        if place not in self._pending and len(self._pending) >= MOST_ROWS:
            place = Place(place.day, OTHERS, ALL_LEVELS)
        found = self._pending.setdefault(place, Counts())
        found += counts

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock(), UTC).date()
