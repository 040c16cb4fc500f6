"""The controller's handles on attention processes: what memory they lend, and when it is cleared.

They live as long as the service, in whose memory their mailboxes are. Where there are none, every vault answers itself.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping

import msgspec

from cloister.controller.forkserver import ForkServer
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.controller_attention import AttentionReady, ClearPlace, FromAttention, PlaceCleared
from cloister.messages.controller_service import LinkPlace
from cloister.messages.types import VERSION
from cloister.process.child import Child
from cloister.process.handle import Handle

End = Callable[[Child, Callable[[], None]], None]
"""Ends a process and says when it has ended."""


class Attention:
    """One of them, from fork to end; `on_end` is called if it ends before `close`."""

    def __init__(self, forkserver: ForkServer, mailbox: int, places: int, end: End, on_end: Callable[[], None]) -> None:
        self._places, self._end, self._on_end = places, end, on_end
        self.memory: dict[int, int] = {}
        """Descriptors of what it lends, by its own numbers."""
        self._clearing: dict[int, Callable[[], None]] = {}
        self._open = True
        self._child, ours = forkserver.spawn("attention", mailbox, places=places)
        says, handle, ended = FromAttention, self._receive, self._ended
        self._handle = Handle("attention process", self._child, ours, says, AttentionReady, handle=handle, on_end=ended)

    async def ready(self) -> None:
        ready = await self._handle.ready
        if ready.version != VERSION or set(self.memory) != set(range(self._places)):
            raise ProtocolError("An attention process is of another version, or lends less than agreed.")

    def clear(self, place: int, then: Callable[[], None]) -> None:
        """The vault there has ended; `then` runs when nothing is left of it, and never if this process ends before."""
        if self._open:
            self._clearing[place] = then
            self._handle.send(ClearPlace(place))

    def close(self) -> None:
        """Hang up, and have it ended: a signal is no way to while its kernel may run."""
        if self._open:
            self._open = False
            self._handle.endpoint.close()
            self._end(self._child, lambda: None)
            self._clearing.clear()
            while self.memory:
                os.close(self.memory.popitem()[1])

    def _receive(self, message: msgspec.Struct) -> None:
        if isinstance(message, LinkPlace):
            descriptor = self._handle.endpoint.take_descriptor()
            if self._handle.started or message.place in self.memory:
                os.close(descriptor)
                raise ProtocolError("An attention process sent a message out of turn.")
            self.memory[message.place] = descriptor
        elif isinstance(message, PlaceCleared) and message.place in self._clearing:
            self._clearing.pop(message.place)()
        else:
            raise ProtocolError("An attention process sent a message out of turn.")

    def _ended(self) -> None:
        started = self._handle.started
        self.close()
        if started:
            self._on_end()


class AttentionProcesses:
    """All of one life of a service. Places are numbered so that neighbours are in different processes."""

    def __init__(
        self, forkserver: ForkServer, mailboxes: Mapping[int, int], places: int, end: End, on_end: Callable[[], None]
    ) -> None:
        self._end, self._count = end, len(mailboxes)
        self._all = [
            Attention(forkserver, mailboxes[number], len(range(number, places, self._count)), end, on_end)
            for number in sorted(mailboxes)
        ]

    async def ready(self, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                for process in self._all:
                    await process.ready()
        except TimeoutError:
            raise ServiceUnavailable("The attention processes do not start in time.") from None

    @property
    def memory(self) -> dict[int, int]:
        """Descriptors by place."""
        lent = [
            (slot * self._count + number, memory)
            for number, process in enumerate(self._all)
            for slot, memory in process.memory.items()
        ]
        return dict(sorted(lent))

    def end(self, vault: Child, place: int, then: Callable[[], None]) -> None:
        """End the vault, then clear its place."""
        slot, number = divmod(place, self._count)
        self._end(vault, lambda: self._all[number].clear(slot, then))

    def close(self) -> None:
        for process in self._all:
            process.close()
