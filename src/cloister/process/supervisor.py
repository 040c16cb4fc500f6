"""Keeps a process running. Its owner gives `start`, `clean_up` after it, and `ended`, called at its end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from cloister.errors import CloisterError, where_raised

log = logging.getLogger(__name__)
BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)  # pauses before one start after another; the last one repeats
GOOD_LIFE_S = 5.0  # after a life this long, the next pause is the first one again


class BackOff:
    def __init__(self) -> None:
        self.attempts = 0

    def reset(self) -> None:
        self.attempts = 0

    async def pause(self) -> None:
        pause_s = BACK_OFF_S[min(self.attempts, len(BACK_OFF_S) - 1)]
        self.attempts += 1
        await asyncio.sleep(pause_s)


async def cancelled(*tasks: asyncio.Task[None] | None) -> None:
    """Returns when they have ended, whatever they raised."""
    ending = [task for task in tasks if task is not None]
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def nothing_to_clean() -> None:
    """For a process that its owner has cleaned up after by the time it reports the end."""


class Supervisor:
    """`start` raises why it is not ready; `clean_up` follows each life and failed start. They do not overlap."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[None]],
        clean_up: Callable[[], Awaitable[None]] = nothing_to_clean,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._start, self._clean_up, self._clock = name, start, clean_up, clock
        self._back_off = BackOff()
        self._ended = asyncio.Event()
        self._started_at: float | None = None  # None while there is no life
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.restarts = 0  # lives that ended, and starts that failed

    async def start(self) -> None:
        """For the first start, where the owner must know why it fails."""
        self._ended.clear()
        try:
            await self._start()
        except Exception:
            await self._clean_up()
            raise
        self._started_at = self._clock()

    def keep(self) -> None:
        """A second call changes nothing, nor one after `close`."""
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._keep())

    def ended(self, name: str = "") -> None:
        """May be called during a start, and more than once. `name`: which one of several."""
        if not self._ended.is_set() and not self._closed:
            log.warning("The %s ended; starting it again.", name or self._name)
        self._ended.set()

    async def close(self) -> None:
        """What runs, or was half started, is the owner's to end."""
        self._closed = True
        await cancelled(self._task)

    async def _keep(self) -> None:
        while True:
            try:
                if self._started_at is None:
                    await self.start()
                await self._wait_for_end()
            except CloisterError as reason:
                log.error("The %s does not start: %s", self._name, reason)
            except Exception as wrong:
                log.error("The %s does not start: %s.", self._name, where_raised(wrong))
            self.restarts += 1
            await self._back_off.pause()

    async def _wait_for_end(self) -> None:
        assert self._started_at is not None
        await self._ended.wait()
        if self._clock() - self._started_at >= GOOD_LIFE_S:
            self._back_off.reset()
        self._started_at = None
        await self._clean_up()
