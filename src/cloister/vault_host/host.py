"""The vault host: weights, fork server, doorkeeper. Its evidence has a fresh TLS certificate as channel key. One vault
computes at a time; a fork server that ends takes all vaults and is started again."""

import asyncio
import itertools
import logging
import os
import socket
from collections.abc import Callable
from time import time

import msgspec

from cloister.attest.evidence import HOST_DOMAIN, Statement
from cloister.config import VaultHostSettings
from cloister.controller.attested_settings import attested_host_settings
from cloister.controller.channel_keys import ShownKey
from cloister.controller.core_lease import LeaseKeeper
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.external_level import installed_packages
from cloister.controller.forkserver import ForkServer, link_shape, seal_weights
from cloister.errors import ProtocolError, SetupError
from cloister.link.memory import LinkMemory, LinkShape
from cloister.link.network.address import Address, address_of
from cloister.link.network.credentials import certificate_hash, credentials_from, read_secret
from cloister.link.network.handshake import digest_of, request_for
from cloister.messages import network_link as wire
from cloister.messages.controller_forkserver import Preloaded
from cloister.messages.controller_gateway import AskEvidence
from cloister.messages.controller_vault import CoresDone, WantCores
from cloister.models.source import ModelFolder
from cloister.process.child import Child, start_module
from cloister.process.endpoint import Endpoint
from cloister.process.supervisor import Supervisor

log = logging.getLogger(__name__)
DOORKEEPER = "cloister.link.network.doorkeeper"
FIRST_MESSAGE_S = 10.0  # until a peer that knows the key asks for a vault
CERTIFICATE_HELD_S = 3600.0  # promised in evidence; the certificate lives as long as this process
WAIT_FOR_THE_KILLED_S = 2.0


class Connection:
    """Its bridge and, once asked for, its vault: they end together, and with the connection."""

    def __init__(
        self,
        number: int,
        bridge: Child,
        line: socket.socket,
        shape: LinkShape,
        forkserver: ForkServer,
        core_lease: LeaseKeeper,
        on_end: "Callable[[Connection], None]",
        evidence_maker: EvidenceMaker,
    ) -> None:
        self.number, self._evidence_maker, self._forkserver, self._shape = number, evidence_maker, forkserver, shape
        self._core_lease, self._on_end = core_lease, on_end
        self._open = True
        self._link: LinkMemory | None = None
        self._vault: Child | None = None
        self._bridge = bridge
        self._channel = Endpoint(line, wire.FromVaultBridge, self._receive, self.close)
        # The server pings both through the connection; this finds one that is stopped.
        self._channel.watch("vault or its bridge", lambda: any(one.stopped for one in (bridge, self._vault) if one))
        self._patience = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, self.abort)

    def send(self, message: msgspec.Struct) -> None:
        self._channel.send(message)

    def abort(self) -> None:
        """Too late with its first message, or with the cores."""
        log.warning("A vault kept the cores too long." if self._vault else "A peer knew the key and asked for nothing.")
        self.close()

    def close(self, wait_s: float = 0.0) -> None:
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
            case AskEvidence() if self._vault is None:
                self._evidence_maker.answer(self, message)
            case wire.Admitted() if self._vault is None:
                self._patience.cancel()
                self._link = LinkMemory(self._shape)
                self._vault, control = self._forkserver.spawn("vault", *self._link.vault_descriptors)
                with control:
                    self._channel.send(wire.UseVault(), (*self._link.service_descriptors, control.fileno()))
            case WantCores() if self._vault is not None:
                # A vault host does not learn the tenants: each vault counts as one.
                self._core_lease.want(self.number, self, message.tokens, str(self.number), reading=message.reading)
            case CoresDone() if self._vault is not None:
                self._core_lease.done(self.number)
            case _:
                raise ProtocolError("A bridge sent a message out of turn.")


class VaultHost:
    def __init__(self, folder: ModelFolder, settings: VaultHostSettings) -> None:
        self._folder, self._settings = folder, settings
        self._credentials = credentials_from(read_secret(settings.key_file), "vault_host")
        self._certificate = certificate_hash(self._credentials)
        self._attested = attested_host_settings(settings)
        self._started = int(time())
        self._digest = b""
        shown = ShownKey(self._certificate, CERTIFICATE_HELD_S)
        self._evidence_maker = EvidenceMaker.of(
            settings, installed_packages(), lambda: shown, self._statement, domain=HOST_DOMAIN
        )
        self._core_lease = LeaseKeeper(settings.engine.cores, settings.vault_deadline_s, settings.vault_deadline_s)
        self._numbers = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        self._weights: int | None = None
        self._preloaded: Preloaded | None = None
        self._order: wire.Accept | None = None
        self._forkserver: ForkServer | None = None
        self._supervisor = Supervisor("fork server", self._start_forkserver)
        self._listener: socket.socket | None = None
        self._doorkeeper: Child | None = None
        self._door: Endpoint | None = None
        self._door_supervisor = Supervisor("doorkeeper", self._open_door, self._close_door)

    async def start(self) -> Address:
        address = Address.parse(self._settings.listen)
        await self._evidence_maker.start()
        try:
            self._listener = address.listen()
        except OSError as reason:
            raise SetupError(
                f"Cannot listen on {address}: {reason.strerror}.", hint="Choose another --listen."
            ) from None
        self._weights = await seal_weights(self._folder, self._settings.engine)
        await self._supervisor.start()
        assert self._preloaded is not None
        if not self._preloaded.partitionable:
            raise SetupError("This model's attention cannot be partitioned with these kernels.")
        self._digest = await asyncio.to_thread(digest_of, self._weights)
        request = request_for(self._digest, link_shape(self._preloaded))
        self._order = wire.Accept(self._credentials, request, self._settings.allow_degraded_sandbox)
        await self._door_supervisor.start()
        self._supervisor.keep()
        self._door_supervisor.keep()
        return address_of(self._listener)

    async def close(self) -> None:
        await self._evidence_maker.close()
        await self._supervisor.close()
        await self._door_supervisor.close()
        await self._close_door()
        if self._listener:
            self._listener.close()
        self._close_connections(WAIT_FOR_THE_KILLED_S)
        if self._forkserver:
            await self._forkserver.close()
        if self._weights is not None:
            os.close(self._weights)

    async def _start_forkserver(self) -> None:
        assert self._weights is not None
        forkserver = ForkServer(self._forkserver_ended)
        settings, allow = self._settings, self._settings.allow_degraded_sandbox
        try:
            facts = await forkserver.preload(self._folder, settings.engine, self._weights, allow_degraded=allow)
        except BaseException:
            await forkserver.close()
            raise
        self._forkserver, self._preloaded = forkserver, facts

    def _forkserver_ended(self) -> None:
        self._forkserver = None
        self._close_connections()
        self._supervisor.ended()

    def _close_connections(self, wait_s: float = 0.0) -> None:
        for connection in list(self._connections.values()):
            connection.close(wait_s)

    async def _open_door(self) -> None:
        """Connections that arrive while there is no doorkeeper wait in the kernel."""
        assert self._listener is not None and self._order is not None
        doorkeeper, ours = start_module(DOORKEEPER)
        self._doorkeeper = doorkeeper
        self._door = Endpoint(ours, wire.Arrived, self._arrived, self._door_supervisor.ended)
        self._door.watch("doorkeeper", lambda: doorkeeper.stopped)
        self._door.send(self._order, (self._listener.fileno(),))

    async def _close_door(self) -> None:
        if self._door and self._doorkeeper:
            self._doorkeeper.kill(WAIT_FOR_THE_KILLED_S)  # first: it would write to a socket that is closed
            self._door.close()

    def _arrived(self, _: wire.Arrived) -> None:
        assert self._door is not None and self._preloaded is not None
        bridge = Child()
        bridge.born(self._door.take_descriptor())
        line = socket.socket(fileno=self._door.take_descriptor())
        full = len(self._connections) >= self._settings.max_vaults
        if full or self._forkserver is None:
            log.warning("A connection was turned away: %s.", "no room" if full else "no fork server")
            line.close()
            bridge.kill()
            return
        number, lease, maker = next(self._numbers), self._core_lease, self._evidence_maker
        self._connections[number] = Connection(
            number, bridge, line, link_shape(self._preloaded), self._forkserver, lease, self._ended, maker
        )

    async def _statement(self) -> Statement:
        assert self._preloaded is not None
        settings, missing = self._attested, self._preloaded.missing
        name, started = self._folder.name, self._started
        return Statement(name, self._digest, settings, settings.hash, missing_layers=missing, started=started)

    def _ended(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
