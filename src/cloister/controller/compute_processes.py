"""Weights (sealed once) → fork server → vaults, service; on a GPU MPS and attention. None survives its fork server."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from cloister.attest.evidence import NodeEvidence
from cloister.config import Settings
from cloister.controller.attention import AttentionProcesses, LinkSlots
from cloister.controller.forkserver import ForkServer, link_shape, seal_weights
from cloister.controller.mps import mps_for
from cloister.controller.relay import Relay
from cloister.controller.service import Service, Starter
from cloister.controller.vault_host import VaultHostClient
from cloister.levels import Decodes
from cloister.link.memory import LinkShape
from cloister.link.network.handshake import digest_of
from cloister.messages.controller_forkserver import Preloaded
from cloister.messages.generation import Ready
from cloister.models.source import ModelFolder
from cloister.placement import Placement
from cloister.process.supervisor import Supervisor
from cloister.process.watchdog import SILENT

SERVICE_START_S = 120.0
WAIT_FOR_THE_KILLED_S = 2.0
ENDING_AT_ONCE = 4  # clients of MPS that may be ending while others begin
ReachVaultHost = Callable[[int, LinkShape], Awaitable[VaultHostClient | None]]  # None where vaults live on this machine


class ComputeProcesses:
    """`on_up` is called when a service has started; `on_down` with what decoded in the processes that ended."""

    has_vaults = True

    def __init__(
        self,
        folder: ModelFolder,
        settings: Settings,
        relay: Relay,
        reach_vault_host: ReachVaultHost,
        on_up: Callable[[], None],
        on_down: Callable[[Decodes], None],
    ) -> None:
        self._folder, self._settings, self._relay = folder, settings, relay
        self._reach_vault_host, self._on_up, self._on_down = reach_vault_host, on_up, on_down
        self._supervisor = Supervisor("fork server or service", self._start_what_is_missing)
        self._weights: int | None = None
        self._digest: asyncio.Task[bytes] | None = None
        self._forkserver: ForkServer | None = None
        self._vault_host: VaultHostClient | None = None
        self.service: Service | None = None
        self.preloaded: Preloaded | None = None
        self.ready: Ready | None = None
        self._mps = mps_for(settings)
        self._attention: AttentionProcesses | None = None

    def launch(self) -> None:
        self._forkserver = ForkServer(self._forkserver_ended)

    async def start(self) -> None:
        self._weights = await seal_weights(self._folder, self._settings.engine)
        self._digest = asyncio.create_task(asyncio.to_thread(digest_of, self._weights))
        await self._supervisor.start()

    def keep(self) -> None:
        self._supervisor.keep()

    async def close(self) -> None:
        await self._supervisor.close()
        if self._vault_host:
            await self._vault_host.close()
        self._relay.vaults.close(WAIT_FOR_THE_KILLED_S)
        self._relay.sessions.end_all(WAIT_FOR_THE_KILLED_S)
        self._close_attention()
        if self.service:
            self.service.close(WAIT_FOR_THE_KILLED_S)
        if self._forkserver:
            await self._forkserver.close()
        if self._mps:
            await self._mps.close()
        if self._digest:
            await asyncio.wait((self._digest,))
        if self._weights is not None:
            os.close(self._weights)
            self._weights = None

    @property
    def _placement(self) -> Placement:
        return Placement() if self.preloaded is None else self.preloaded.placement

    @property
    def has_vault_host(self) -> bool:
        return self._vault_host is not None

    async def weights_digest(self) -> bytes:
        assert self._digest is not None
        return await asyncio.shield(self._digest)

    async def vault_host_evidence(self, nonce: bytes) -> dict[str, NodeEvidence]:
        return await self._vault_host.evidence(nonce) if self._vault_host else {}

    async def _start_what_is_missing(self) -> None:
        if self._mps:
            await self._mps.ended()
        forkserver = self._forkserver if self._forkserver and self._forkserver.up else await self._preload_forkserver()
        if self.service is not None:
            return
        patience = SILENT["service"].beyond(self._settings.controller.service_deadline_s)
        starter, start_s = self._starter(forkserver)
        service = Service(starter, self._relay.from_service, self._service_ended, patience)
        try:
            self.ready = await service.ready(start_s)
            if self._mps and self._placement.uses_mps:
                ended = self._attention_ended
                self._attention = AttentionProcesses(forkserver, service, self._placement, self._mps.end, ended)
                await self._attention.ready(SERVICE_START_S)
        except BaseException:
            self._close_attention()
            service.close()
            raise
        self.service = service
        self._relay.service_up(service)
        self._on_up()
        if self._attention is not None:
            self._open_vaults(self._attention.link_slots(), forkserver)

    def _starter(self, forkserver: ForkServer) -> tuple[Starter, float]:
        """What starts the service, and how long it may take."""
        return forkserver, SERVICE_START_S

    async def _preload_forkserver(self) -> ForkServer:
        assert self._weights is not None
        controls, mps = self._settings.controller, self._mps
        if mps and not mps.running:
            await mps.start(self._mps_ended)
        if self._forkserver is None:
            self.launch()
        forkserver = self._forkserver
        assert forkserver is not None
        try:
            facts = await forkserver.preload(
                self._folder,
                self._settings.engine,
                self._weights,
                allow_degraded=controls.allow_degraded_sandbox,
                meeting=mps.folder if mps else "",
            )
            shape = link_shape(facts)
            self._vault_host = self._vault_host or await self._reach_vault_host(self._weights, shape)
        except BaseException:
            self._forkserver = None
            await forkserver.close()
            raise
        self.preloaded = facts
        if not facts.placement.uses_mps:
            self._relay.vaults.open(self._vault_host or forkserver, shape)
        return forkserver

    def _open_vaults(self, slots: LinkSlots, forkserver: ForkServer) -> None:
        assert self.preloaded is not None
        self._relay.sessions.keep_within(slots.free - ENDING_AT_ONCE)  # a session's vault was a spare one
        self._relay.compute_beside()
        self._relay.vaults.open(self._vault_host or forkserver, link_shape(self.preloaded), slots)

    def _close_attention(self) -> None:
        if self._attention is not None:
            self._attention.close()
            self._attention = None

    def _attention_ended(self) -> None:
        """Its mailboxes are in the service's memory, and the prompts it held are gone: the service restarts too."""
        if self.service is not None:
            self.service.abort()

    def _service_ended(self) -> None:
        # On MPS vaults' links were in its memory, and a fault of the GPU lasts until all its clients have left.
        self._ended("service", with_vaults=self._placement.uses_mps)

    def _mps_ended(self) -> None:
        """Without MPS no process can compute: the fork server and all that it forked are started again with it."""
        if self._forkserver is not None and self._forkserver.up:
            self._forkserver.kill()
            self._forkserver_ended()

    def _forkserver_ended(self) -> None:
        self._forkserver = None
        self._on_down(Decodes.VAULT)
        self._ended("fork server", with_vaults=True)

    def _ended(self, name: str, *, with_vaults: bool) -> None:
        self._on_down(Decodes.SERVICE)
        if self.service is not None:
            self.service.close()
            self.service = None
        self._relay.service_gone()
        if with_vaults:
            self._relay.vaults.close()
            self._relay.sessions.end_all()
        self._close_attention()
        self._supervisor.ended(name)
