"""One connection to the vault host: its bridge and, once that has checked who it is, a vault of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import msgspec

from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.forkserver import ForkServer
from cloister.errors import ProtocolError
from cloister.link.memory import LinkMemory
from cloister.link.network.handshake import shape_of
from cloister.messages.bridge import Accept, Admitted, FromVaultBridge, UseVault
from cloister.messages.vault import CoresDone, WantCores
from cloister.process.child import Child, start_module
from cloister.process.endpoint import Endpoint
from cloister.process.hardening import WIPE_FREED_MEMORY

log = logging.getLogger(__name__)

VAULT_BRIDGE = "cloister.link.network.vault_bridge"
HANDSHAKE_S = 15.0


class Connection:
    """Bridge and vault end together, and with the connection; `on_end` is then called once."""

    def __init__(
        self,
        number: int,
        accepted: socket.socket,
        order: Accept,
        forkserver: ForkServer,
        core_lease: LeaseKeeper,
        on_end: Callable[[Connection], None],
    ) -> None:
        self.number = number
        self._forkserver = forkserver
        self._shape = shape_of(order.request)
        self._core_lease = core_lease
        self._on_end = on_end
        self._open = True
        self._link: LinkMemory | None = None
        self._vault: Child | None = None
        self._bridge, ours = start_module(VAULT_BRIDGE, **WIPE_FREED_MEMORY)
        self._channel = Endpoint(ours, FromVaultBridge, self._receive, self.close)
        self._channel.send(order, (accepted.fileno(),))
        self._patience = asyncio.get_running_loop().call_later(HANDSHAKE_S, self.give_up)

    @property
    def admitted(self) -> bool:
        """Whether the peer has proved who it is."""
        return self._vault is not None

    def send(self, message: msgspec.Struct) -> None:
        """The core lease gives the cores."""
        self._channel.send(message)

    def give_up(self) -> None:
        """It takes too long: over its handshake, or with the cores."""
        log.warning("A vault kept the cores too long." if self.admitted else "A stranger did not introduce itself.")
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
        self._core_lease.gone(self.number)
        self._on_end(self)

    def _receive(self, message: msgspec.Struct) -> None:
        match message:
            case Admitted() if self._vault is None:
                self._patience.cancel()
                self._link = LinkMemory(self._shape)
                self._vault, control = self._forkserver.spawn("vault", *self._link.vault_descriptors)
                with control:
                    self._channel.send(UseVault(), (*self._link.service_descriptors, control.fileno()))
            case WantCores() if self._vault is not None:
                self._core_lease.want(self.number, self, message.tokens)
            case CoresDone() if self._vault is not None:
                self._core_lease.done(self.number)
            case _:
                raise ProtocolError("A bridge sent a message out of turn.")
