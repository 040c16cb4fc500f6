"""The controller's handle on the service process: one life of it, from fork to end. It never sees a prompt's text."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from cloister.controller.nursery import Nursery
from cloister.errors import ProtocolError, ServiceUnavailable, error_from_code
from cloister.link.memory import LinkMemory
from cloister.messages.generation import VERSION, AskStats, Cancel, Ready, Stats
from cloister.messages.lifecycle import StartFailed
from cloister.messages.service import AttachLink, DetachLink, FromSealedService
from cloister.process.endpoint import Channel


class Service:
    """`on_message` gets what it says of requests; `on_end` is called if it ends after it was ready."""

    def __init__(
        self, nursery: Nursery, on_message: Callable[[msgspec.Struct], None], on_end: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_end = on_end
        self._stats: deque[Callable[[Stats], None]] = deque()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._child, ours = nursery.spawn("service")
        self._channel = Channel(ours, FromSealedService, self._receive, self._ended)

    @property
    def pid(self) -> int | None:
        return self._child.pid

    async def ready(self, patience_s: float) -> Ready:
        """What it says when it can serve."""
        try:
            async with asyncio.timeout(patience_s):
                return await self._ready
        except TimeoutError:
            self.close()
            raise ServiceUnavailable("The service does not start in time.") from None

    def send(self, message: msgspec.Struct) -> None:
        self._channel.send(message)

    def attach(self, number: int, link: LinkMemory) -> None:
        """Let it ask this vault: it writes questions and reads answers."""
        self._channel.send(AttachLink(number), link.service_descriptors)

    def detach(self, number: int) -> None:
        self._channel.send(DetachLink(number))

    def ask_stats(self, then: Callable[[Stats], None]) -> None:
        """Its totals, once everything sent before has been dealt with."""
        self._stats.append(then)
        self._channel.send(AskStats())

    def cancel(self, request_id: int, then: Callable[[], None]) -> None:
        """End a request; `then` runs when the service will certainly ask no vault for it any more."""
        self._channel.send(Cancel(request_id))
        self.ask_stats(lambda _: then())

    def give_up(self) -> None:
        """It does not answer: treat it as dead, and make it so."""
        self.close()
        self._on_end()

    def close(self, wait_s: float = 0.0) -> None:
        """End it; whoever waits for its totals gets what is left to say."""
        self._channel.close()
        self._child.kill(wait_s)
        while self._stats:
            self._stats.popleft()(Stats(up=False))

    def _receive(self, message: msgspec.Struct) -> None:
        match message:
            case Ready(version=version) if version == VERSION and not self._ready.done():
                self._ready.set_result(message)
            case StartFailed() if not self._ready.done():
                self._ready.set_exception(error_from_code(message.code, message.message, hint=message.hint))
            case Ready() | StartFailed():
                raise ProtocolError("The service sent a message out of turn.")
            case Stats() if self._stats:
                self._stats.popleft()(message)
            case _:
                self._on_message(message)

    def _ended(self) -> None:
        self.close()
        if not self._ready.done():
            self._ready.set_exception(ServiceUnavailable("The service ended while it started."))
        elif not self._ready.cancelled() and self._ready.exception() is None:
            self._on_end()
