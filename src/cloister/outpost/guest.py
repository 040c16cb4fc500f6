"""One connection to the outpost: its far bridge and, once that vouches for who it is, a vault of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from cloister.controller.referee import Referee
from cloister.errors import ProtocolError
from cloister.link.memory import LinkMemory, create_link
from cloister.link.shape import LinkShape
from cloister.messages.bridge import Admitted, FromFar, Lend, Receive
from cloister.messages.vault import FloorDone, WantFloor
from cloister.process.child import Child, start_module
from cloister.process.endpoint import Endpoint
from cloister.process.hardening import WIPE_FREED_MEMORY

log = logging.getLogger(__name__)

FAR = "cloister.link.network.far"
INTRODUCTION_S = 15.0


class Forks(Protocol):
    """A fork server, as far as a guest is concerned."""

    def spawn(self, role: Literal["service", "vault"], *descriptors: int) -> tuple[Child, socket.socket]: ...


class Guest:
    """Bridge and vault end together, and with the connection; `on_end` is then called once."""

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        order: Receive,
        forkserver: Forks,
        shape: LinkShape,
        referee: Referee,
        on_end: Callable[[Guest], None],
    ) -> None:
        self.number = number
        self._forkserver = forkserver
        self._shape = shape
        self._referee = referee
        self._on_end = on_end
        self._open = True
        self._link: LinkMemory | None = None
        self._vault: Child | None = None
        self._bridge, ours = start_module(FAR, **WIPE_FREED_MEMORY)
        self._channel = Endpoint(ours, FromFar, self._receive, self.close)
        self._channel.send(order, (connection.fileno(),))
        self._patience = asyncio.get_running_loop().call_later(INTRODUCTION_S, self.give_up)

    @property
    def admitted(self) -> bool:
        """Whether it has proved who it is."""
        return self._vault is not None

    @property
    def vault_pid(self) -> int | None:
        return self._vault.pid if self._vault else None

    def send(self, message: msgspec.Struct) -> None:
        """The referee gives the floor."""
        self._channel.send(message)

    def give_up(self) -> None:
        """It takes too long: over its introduction, or with the floor."""
        log.warning("A vault kept the floor too long." if self.admitted else "A stranger did not introduce itself.")
        self.close()

    def close(self, wait_s: float = 0.0) -> None:
        """Kill both; what the vault held is gone with it."""
        if not self._open:
            return
        self._open = False
        self._patience.cancel()
        self._channel.close()
        self._bridge.kill(wait_s)
        if self._vault is not None:
            self._vault.kill(wait_s)
        if self._link is not None:
            self._link.close()
        self._referee.gone(self.number)
        self._on_end(self)

    def _receive(self, message: msgspec.Struct) -> None:
        match message:
            case Admitted() if self._vault is None:
                self._patience.cancel()
                self._link = create_link(self._shape)
                self._vault, control = self._forkserver.spawn("vault", *self._link.vault_descriptors)
                with control:
                    self._channel.send(Lend(), (*self._link.service_descriptors, control.fileno()))
            case WantFloor() if self._vault is not None:
                self._referee.want(self.number, self, message.tokens)
            case FloorDone() if self._vault is not None:
                self._referee.done(self.number)
            case _:
                raise ProtocolError("A bridge sent a message out of turn.")
