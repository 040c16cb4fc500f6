"""Epochs: all parties' engines live and die together, since a broken link between them cannot be mended.

Rank 0 leads: when all parties are there and hold shares of the same dealings, it has everyone start an engine, then
connect, then begin. Whoever notices that something broke says so; the leader ends the epoch at all parties and begins
the next. A party that falls silent counts as gone. Knows no sessions.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from cloister.errors import CloisterError, PartyLost
from cloister.messages.mpc import Beat, Begin, Broken, Join, Joined, Prepare, Prepared
from cloister.mpc.config import PartiesConfig
from cloister.mpc.line import Line

log = logging.getLogger(__name__)

SECONDS_BETWEEN_EPOCHS = 0.5


class Own(msgspec.Struct):
    """What this party does at each stage of an epoch."""

    prepare: Callable[[bytes], Awaitable[None]]
    join: Callable[[], Awaitable[None]]
    begin: Callable[[int], None]
    end: Callable[[str], None]


class Leader:
    """Rank 0. `lead` runs as long as the party does."""

    def __init__(self, config: PartiesConfig, own: Own, shelf: Callable[[], bytes | None]) -> None:
        self._config = config
        self._own = own
        self._shelf = shelf
        self._followers: dict[int, Line] = {}
        self._stock: dict[int, bytes] = {}
        self._answers: dict[type[msgspec.Struct], set[int]] = {}
        self._changed = asyncio.Event()
        self._broken: str | None = None
        self._using: bytes | None = None
        self.number = 0

    @property
    def missing(self) -> str:
        """What the next epoch waits for; empty when nothing."""
        absent = [str(rank) for rank in range(1, len(self._config.party)) if rank not in self._followers]
        if absent:
            return f"not connected: party {', '.join(absent)}"
        own = self._shelf()
        if own is None:
            return "weights are not dealt"
        if any(self._stock.get(rank) != own for rank in self._followers):
            return "the parties' weights are not of one dealing"
        return ""

    def arrived(self, rank: int, line: Line) -> bool:
        """A follower; False if it is there already."""
        if rank in self._followers:
            return False
        self._followers[rank] = line
        self._changed.set()
        return True

    def left(self, rank: int, reason: str) -> None:
        self._followers.pop(rank, None)
        self._stock.pop(rank, None)
        self.broke(reason)

    def stocked(self, rank: int, shelf: bytes) -> None:
        """A follower's shelf is complete."""
        self._stock[rank] = shelf
        self.restocked()

    def restocked(self) -> None:
        """Some shelf changed: once all agree again, engines must load what is new."""
        if not self.missing and self._shelf() != self._using:
            self.broke("new weights")
        self._changed.set()

    def answered(self, rank: int, message: Prepared | Joined) -> None:
        if message.epoch == self.number:
            self._answers.setdefault(type(message), set()).add(rank)
            self._changed.set()

    def broke(self, reason: str) -> None:
        """The epoch under way is over."""
        self._broken = self._broken or reason
        self._changed.set()

    def tell(self, message: msgspec.Struct) -> None:
        """To all followers."""
        for line in self._followers.values():
            line.post(message)

    async def lead(self) -> None:
        """Epoch after epoch."""
        while True:
            await self._until(lambda: not self.missing)
            self._broken = None
            self._using = self._shelf()
            self._answers.clear()
            self.number += 1
            try:
                await asyncio.wait_for(self._establish(), self._config.limits.start_s)
                log.info("Epoch %d has begun.", self.number)
                await self._until(lambda: self._broken is not None)
            except (TimeoutError, CloisterError, OSError) as problem:
                self._broken = self._broken or f"an epoch did not begin ({type(problem).__name__})"
            reason = self._broken or "it broke"
            log.warning("Epoch %d is over: %s.", self.number, reason)
            self.tell(Broken(self.number, reason))
            self._own.end(reason)
            await asyncio.sleep(SECONDS_BETWEEN_EPOCHS)

    async def _establish(self) -> None:
        self.tell(Prepare(self.number, key := secrets.token_bytes(16)))
        await self._stage(self._own.prepare(key), Prepared)
        self.tell(Join(self.number))
        await self._stage(self._own.join(), Joined)
        self.tell(Begin(self.number))
        self._own.begin(self.number)

    async def _stage(self, own: Awaitable[None], answer: type[Prepared] | type[Joined]) -> None:
        """Our own part and all followers' answers; ends at once when something broke."""
        task = asyncio.ensure_future(own)
        everyone = set(range(1, len(self._config.party)))
        task.add_done_callback(lambda _: self._changed.set())
        try:
            await self._until(
                lambda: self._broken is not None or (task.done() and self._answers.get(answer, set()) >= everyone)
            )
            if self._broken is not None:
                raise PartyLost(self._broken)
            await task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, CloisterError, OSError, TimeoutError):
                await task

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()


class Follower:
    """Every other rank, for one connection to the leader."""

    def __init__(self, own: Own, line: Line) -> None:
        self._own = own
        self._line = line
        self._epoch = 0
        self._task: asyncio.Task[None] | None = None

    def receive(self, message: Prepare | Join | Begin | Broken) -> None:
        """What the leader says of epochs."""
        match message:
            case Prepare():
                self._end("a new epoch begins")
                self._epoch = message.epoch
                self._do(self._own.prepare(message.key), Prepared(message.epoch))
            case Join() if message.epoch == self._epoch:
                self._do(self._own.join(), Joined(message.epoch))
            case Begin() if message.epoch == self._epoch:
                self._own.begin(message.epoch)
            case Broken() if message.epoch == self._epoch:
                self._end(message.reason)

    def broke(self, reason: str) -> None:
        """Noticed here: end it, and say so."""
        self._line.post(Broken(self._epoch, reason))
        self._end(reason)

    def close(self) -> None:
        """The leader is gone."""
        self._end("the leading party was lost")

    def _do(self, own: Awaitable[None], answer: Prepared | Joined) -> None:
        async def work() -> None:
            try:
                await own
                self._line.post(answer)
            except (TimeoutError, CloisterError, OSError) as problem:
                log.warning("This party cannot join epoch %d: %s.", answer.epoch, type(problem).__name__)
                self.broke("a party could not join")

        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(work())

    def _end(self, reason: str) -> None:
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._task = None
        self._own.end(reason)


async def beat(line: Line, silence_s: float) -> None:
    """Says that this party lives, until cancelled."""
    while True:
        line.post(Beat())
        await asyncio.sleep(silence_s / 4)
