"""The controller's handle on the service process: one life of it, from fork to end."""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.link.memory import LinkMemory
from cloister.messages.controller_service import AttachLink, DetachLink, FromSealedService, LinkSlot, WeightsMemory
from cloister.messages.generation import AskStats, Cancel, Ready, Stats
from cloister.placement import Role
from cloister.process.child import Child
from cloister.process.handle import Handle
from cloister.process.watchdog import SILENT, Patience


class Starter(Protocol):
    """The fork server, or what starts the process of another engine."""

    def spawn(self, role: Role) -> tuple[Child, socket.socket]: ...


class Service:
    """`on_end` is called if it ends after it was ready."""

    def __init__(
        self,
        starter: Starter,
        on_message: Callable[[msgspec.Struct], None],
        on_end: Callable[[], None],
        patience: Patience = SILENT["service"],
    ) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._stats: deque[Callable[[Stats], None]] = deque()
        self.slots: dict[int, int] = {}  # descriptors of its device's memory for links
        self.weights: int | None = None  # descriptor of the weights in its device's memory
        child, ours = starter.spawn("service")
        handle, ended = self._receive, self._ended
        self._handle = Handle(
            "service", child, ours, FromSealedService, Ready, handle=handle, on_end=ended, patience=patience
        )

    async def ready(self, patience_s: float) -> Ready:
        try:
            async with asyncio.timeout(patience_s):
                return await self._handle.ready
        except TimeoutError:
            self.close()
            raise ServiceUnavailable("The service does not start in time.") from None

    def send(self, message: msgspec.Struct) -> None:
        self._handle.send(message)

    def send_together(self, *messages: msgspec.Struct) -> None:
        for message in messages:
            self._handle.endpoint.send_soon(message)

    def attach(self, number: int, link: LinkMemory, slot: int | None = None) -> None:
        if slot is not None:
            self._handle.send(AttachLink(number, slot))
        else:
            self._handle.send(AttachLink(number), link.service_descriptors)

    def detach(self, number: int) -> None:
        self._handle.send(DetachLink(number))

    def ask_stats(self, then: Callable[[Stats], None]) -> None:
        self._stats.append(then)
        self._handle.send(AskStats())

    def cancel(self, request_id: int, then: Callable[[], None]) -> None:
        """`then` runs when the service certainly queries no vault for it any longer."""
        self._handle.send(Cancel(request_id))
        self.ask_stats(lambda _: then())

    def abort(self) -> None:
        self.close()
        self._on_end()

    def close(self, wait_s: float = 0.0) -> None:
        """Callers of `ask_stats` get totals that say it is down."""
        self._handle.kill(wait_s)
        while self.slots:
            os.close(self.slots.popitem()[1])
        if self.weights is not None:
            os.close(self.weights)
            self.weights = None
        while self._stats:
            self._stats.popleft()(Stats(up=False))

    def _receive(self, message: msgspec.Struct) -> None:
        if isinstance(message, LinkSlot):
            self.slots[message.slot] = self._taken(out_of_turn=message.slot in self.slots)
        elif isinstance(message, WeightsMemory):
            self.weights = self._taken(out_of_turn=self.weights is not None)
        elif isinstance(message, Stats) and self._stats:
            self._stats.popleft()(message)
        else:
            self._on_message(message)

    def _taken(self, *, out_of_turn: bool) -> int:
        descriptor = self._handle.endpoint.take_descriptor()
        if self._handle.started or out_of_turn:
            os.close(descriptor)
            raise ProtocolError("The service sent a message out of turn.")
        return descriptor

    def _ended(self) -> None:
        started = self._handle.started
        self.close()
        if started:
            self._on_end()
