"""The vault host: sealed weights, a fork server, and a listening socket.

One vault computes at a time; the service that asks them computes elsewhere, on cores of its own. A fork server that
ends takes all vaults with it and is started again; the servers see their connections end.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress

import msgspec

from cloister.config import OutpostSettings
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.forkserver import ForkServer
from cloister.controller.weights import seal_weights
from cloister.errors import CloisterError, ProtocolError, SetupError
from cloister.link.memory import LinkMemory, LinkShape
from cloister.link.network.address import Address, address_of, without_delay
from cloister.link.network.credentials import credentials_from, read_secret
from cloister.link.network.handshake import digest_of, request_for, shape_of
from cloister.messages.bridge import Accept, Admitted, FromVaultBridge, UseVault
from cloister.messages.lifecycle import Preloaded
from cloister.messages.vault import CoresDone, WantCores
from cloister.models.source import ModelFolder
from cloister.process.child import Child, start_module
from cloister.process.endpoint import Endpoint

log = logging.getLogger(__name__)

VAULT_BRIDGE = "cloister.link.network.vault_bridge"
HANDSHAKE_S = 15.0
MOST_STRANGERS = 16
"""Connections that have not yet proved who they are; more are closed at once."""

SECONDS_BETWEEN_RESTARTS = 1.0
WAIT_FOR_THE_KILLED_S = 2.0


class Connection:
    """One connection: its bridge and, once that has checked who it is, a vault of its own.

    Bridge and vault end together, and with the connection; `on_end` is then called once.
    """

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
        self._bridge, ours = start_module(VAULT_BRIDGE)
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
                # Whose vault it is, is not told here: each is a tenant of its own.
                self._core_lease.want(self.number, self, message.tokens, str(self.number))
            case CoresDone() if self._vault is not None:
                self._core_lease.done(self.number)
            case _:
                raise ProtocolError("A bridge sent a message out of turn.")


class VaultHost:
    """`start` returns where it listens; it serves until `close`."""

    def __init__(self, folder: ModelFolder, settings: OutpostSettings) -> None:
        self._folder = folder
        self._settings = settings
        self._credentials = credentials_from(read_secret(settings.key_file), "vault_host")
        self._core_lease = LeaseKeeper(settings.engine.cores, settings.vault_deadline_s, settings.vault_deadline_s)
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._weights: int | None = None
        self._forkserver: ForkServer | None = None
        self._listener: socket.socket | None = None
        self._broken = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Address:
        address = Address.parse(self._settings.listen)
        try:
            self._listener = address.listen()
        except OSError as reason:
            raise SetupError(
                f"Cannot listen on {address}: {reason.strerror}.", hint="Choose another --listen."
            ) from None
        self._weights = await seal_weights(self._folder, self._settings.engine)
        facts = await self._start_forkserver()
        if not facts.partitionable:
            raise SetupError("This model's attention cannot be partitioned with these kernels.")
        digest = await asyncio.to_thread(digest_of, self._weights)
        request = request_for(digest, LinkShape(facts.heads, facts.dim, facts.layers))
        order = Accept(self._credentials, request, self._settings.allow_degraded_sandbox)
        self._listener.setblocking(False)
        self._tasks = [asyncio.create_task(self._keep()), asyncio.create_task(self._accept(self._listener, order))]
        return address_of(self._listener)

    async def close(self) -> None:
        """End everything, and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._listener:
            self._listener.close()
        self._close_connections(WAIT_FOR_THE_KILLED_S)
        if self._forkserver:
            await self._forkserver.close()
        if self._weights is not None:
            os.close(self._weights)

    async def _start_forkserver(self) -> Preloaded:
        assert self._weights is not None
        forkserver = ForkServer(self._forkserver_ended)
        settings, allow = self._settings, self._settings.allow_degraded_sandbox
        try:
            facts = await forkserver.preload(self._folder, settings.engine, self._weights, allow_degraded=allow)
        except BaseException:
            await forkserver.close()
            raise
        self._forkserver = forkserver
        return facts

    def _forkserver_ended(self) -> None:
        log.warning("The fork server ended, and all vaults with it; starting again.")
        self._forkserver = None
        self._close_connections()
        self._broken.set()

    def _close_connections(self, wait_s: float = 0.0) -> None:
        for connection in list(self._connections.values()):
            connection.close(wait_s)

    async def _keep(self) -> None:
        while True:
            await self._broken.wait()
            self._broken.clear()
            while self._forkserver is None:
                try:
                    await self._start_forkserver()
                except (CloisterError, OSError) as reason:
                    log.error("The fork server does not start: %s.", type(reason).__name__)
                    await asyncio.sleep(SECONDS_BETWEEN_RESTARTS)

    async def _accept(self, listener: socket.socket, order: Accept) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listener)
            except OSError as reason:  # out of descriptors, say: those who are here stay
                log.error("A connection cannot be accepted: %s.", type(reason).__name__)
                await asyncio.sleep(SECONDS_BETWEEN_RESTARTS)
                continue
            with accepted:
                self._take(accepted, order)

    def _take(self, accepted: socket.socket, order: Accept) -> None:
        """Begin a connection, if there is room; else it is just closed."""
        strangers = sum(not connection.admitted for connection in self._connections.values())
        full = len(self._connections) >= self._settings.max_vaults or strangers >= MOST_STRANGERS
        if full or self._forkserver is None:
            log.warning("A connection was turned away: %s.", "no room" if full else "no fork server")
            return
        accepted.setblocking(True)
        without_delay(accepted)
        number = next(self._numbers)
        self._connections[number] = Connection(number, accepted, order, self._forkserver, self._core_lease, self._ended)

    def _ended(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
