"""The node: which process is started when, and what happens when one ends.

    weights (sealed once) → fork server → spare vaults and service; then a gateway may listen

A service that ends is forked again; the vaults of living sessions stay. A fork server that ends takes all with it and
is started again. When this process ends, however it does, the kernel ends all others (PDEATHSIG, pid namespaces).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from contextlib import suppress
from time import time

from msgspec.structs import asdict

from cloister.attest.attester import find_attester
from cloister.attest.evidence import NodeEvidence, Statement
from cloister.config import Settings
from cloister.controller.attention import AttentionProcesses
from cloister.controller.attested_settings import attested_settings
from cloister.controller.availability import FAILED
from cloister.controller.cache_file import cache_file
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.detector import find_detector
from cloister.controller.evidence import EvidenceMaker, running_release
from cloister.controller.forkserver import ForkServer
from cloister.controller.gpu_evidence import GpuEvidenceKeeper
from cloister.controller.link_slots import LinkSlots
from cloister.controller.mps import mps_for
from cloister.controller.rehearsal import Rehearsal
from cloister.controller.relay import Relay
from cloister.controller.sealed_requests import SealedRequests
from cloister.controller.service import Service
from cloister.controller.vault_host import VaultHostClient, reach_vault_host
from cloister.controller.weights import seal_weights
from cloister.errors import CloisterError, ModelUnsupported, QueueFull, ServiceUnavailable, VaultLost
from cloister.levels import LEVELS, MPC, Decodes, LevelName, Needs, Reader, default_of, served
from cloister.link.memory import LinkShape
from cloister.link.network.handshake import digest_of
from cloister.messages.frontend import Serving
from cloister.messages.generation import Ready
from cloister.messages.lifecycle import Preloaded
from cloister.models.source import ModelFolder
from cloister.placement import Placement
from cloister.process.watchdog import SILENT
from cloister_mpc.client_keeper import MpcClientKeeper
from cloister_mpc.offer import why_not_mpc

log = logging.getLogger(__name__)

SECONDS_BETWEEN_RESTARTS = (0.0, 0.5, 1.0, 2.0, 5.0)
SERVICE_START_S = 120.0
WAIT_FOR_THE_KILLED_S = 2.0
FIRST_REHEARSALS = 3
"""A vault may be late once, on a machine that has just started all of this."""
ENDING_AT_ONCE = 4
"""Clients of MPS that may be ending while others begin."""


class Controller:
    """Owns every process that computes. Frontends speak to its `relay`; `sealed_requests` takes in what came sealed;
    `evidence_maker` shows what this node is."""

    def __init__(self, folder: ModelFolder, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._attested = attested_settings(settings)
        self._weights: int | None = None
        self._forkserver: ForkServer | None = None
        self._forkserver_up = False
        self._preloaded: Preloaded | None = None
        self._service: Service | None = None
        self._ready: Ready | None = None
        self._started = int(time())
        self._digest: asyncio.Task[bytes] | None = None
        self._keys = ChannelKeys()
        self.sealed_requests = SealedRequests(self._keys)
        self._gpus = GpuEvidenceKeeper(settings.controller.gpu_evidence)
        self.evidence_maker = EvidenceMaker(
            find_attester(settings.controller.attester),
            running_release(settings.controller.release),
            lambda: self._keys.shown,
            self._statement,
            gpus=self._gpus,
            vault_hosts=self._host_evidence,
        )
        self._remote: VaultHostClient | None = None
        self._mps = mps_for(settings)
        self._attention: AttentionProcesses | None = None
        self.relay = Relay(settings.controller, lambda: self.serving, settings.engine.cores, self.sealed_requests.lock)
        self._why_not_mpc = why_not_mpc(settings, folder)
        self._client: MpcClientKeeper | None = None
        self._detector = find_detector(settings.controller, self.relay.labelled)
        self._broken, self._untried = asyncio.Event(), asyncio.Event()
        self._unfit: frozenset[LevelName] = frozenset()
        """Levels that failed the first rehearsal: they are not offered."""
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def serving(self) -> Serving:
        if self._preloaded is None or self._ready is None:
            raise ServiceUnavailable("The service is not up yet.")
        facts, ready = self._preloaded, self._ready
        had = {Needs.LINKS: facts.partitionable, Needs.PARTIES: self._why_not_mpc is None}
        able = served(*(need for need, there in had.items() if there))
        levels = tuple(level for level in able if level not in self._unfit)
        step_ms = self._settings.controller.quantise_ttft_ms
        return Serving(
            **asdict(ready),
            levels=levels,
            missing_layers=facts.missing,
            quantised={level: step_ms for level in levels if step_ms and self.relay.shares(level)},
            why_not={} if self._why_not_mpc is None else {MPC: self._why_not_mpc},
        )

    @property
    def _placement(self) -> Placement:
        """Where processes compute; the host's while no fork server has said."""
        return Placement() if self._preloaded is None else self._preloaded.placement

    async def start(self) -> Serving:
        self._launch_forkserver()
        await self._gpus.start()
        self._weights = await seal_weights(self._folder, self._settings.engine)
        self._digest = asyncio.create_task(asyncio.to_thread(digest_of, self._weights))
        await self._start_what_is_missing()
        await self._rehearse_first()
        if self._detector:
            self._detector.start()
            self.relay.examine = self._detector.classify
        keeping = self._keep(), self._keep_rehearsed(), self._keep_keys()
        self._keepers = [asyncio.create_task(keeper) for keeper in keeping]
        if self._why_not_mpc is None:
            self._offer_mpc(self.serving)
        return self.serving

    async def close(self) -> None:
        """End everything, and wait until it has ended."""
        self.evidence_maker.close()
        await self._gpus.close()
        for keeper in self._keepers:
            keeper.cancel()
            with suppress(asyncio.CancelledError):
                await keeper
        if self._client:
            await self._client.close()
        if self._detector:
            await self._detector.close()
        if self._remote:
            await self._remote.close()
        self.relay.vaults.close(WAIT_FOR_THE_KILLED_S)
        self.relay.sessions.end_all(WAIT_FOR_THE_KILLED_S)
        self._close_attention()
        if self._service:
            self._service.close(WAIT_FOR_THE_KILLED_S)
        if self._forkserver:
            await self._forkserver.close()
        if self._mps:
            await self._mps.close()
        if self._digest:
            await asyncio.wait((self._digest,))
        if self._weights is not None:
            os.close(self._weights)
            self._weights = None

    async def _statement(self) -> Statement:
        """What evidence says of this node beside which software it is."""
        serving = self.serving
        assert self._digest is not None
        digest = await asyncio.shield(self._digest)
        settings = self._attested
        return Statement(
            self._folder.name, digest, settings, settings.hash, serving.levels, serving.missing_layers, self._started
        )

    def _offer_mpc(self, serving: Serving) -> None:
        client = self._client = MpcClientKeeper(
            self._folder,
            self._settings.mpc,
            self.relay.mpc,
            vocabulary=serving.vocabulary,
            max_context=serving.max_context,
            identity=b"" if self._attested.parties is None else self._attested.parties.identity,
        )
        if self._settings.mpc.mode == "local" or self._settings.mpc.parties is not None:
            client.start()
        self.relay.mpc.open(client)

    async def _start_what_is_missing(self) -> None:
        if self._mps:
            await self._mps.ended()
        forkserver = self._forkserver if self._forkserver and self._forkserver_up else await self._preload_forkserver()
        if self._service is None:
            with cache_file(self._settings.engine.cache_disk_bytes) as disk:
                patience = SILENT["service"].beyond(self._settings.controller.service_deadline_s)
                service = Service(forkserver, self.relay.from_service, self._service_ended, disk, patience)
            try:
                self._ready = await service.ready(SERVICE_START_S)
            except BaseException:
                service.close()
                raise
            if self._mps and self._placement.links_on_device:
                ended = self._attention_ended
                try:
                    self._attention = AttentionProcesses(forkserver, service, self._placement, self._mps.end, ended)
                    await self._attention.ready(SERVICE_START_S)
                except BaseException:
                    self._close_attention()
                    service.close()
                    raise
            self._service = service
            self.relay.service_up(service)
            self._untried.set()
            if self._attention is not None:
                self._open_vaults(self._attention.link_slots(), forkserver)

    def _launch_forkserver(self) -> ForkServer:
        self._forkserver = ForkServer(self._forkserver_ended)
        return self._forkserver

    async def _preload_forkserver(self) -> ForkServer:
        assert self._weights is not None
        controls, mps = self._settings.controller, self._mps
        if mps and not mps.running:
            await mps.start(self._mps_ended)
        forkserver = self._forkserver or self._launch_forkserver()
        try:
            facts = await forkserver.preload(
                self._folder,
                self._settings.engine,
                self._weights,
                allow_degraded=controls.allow_degraded_sandbox,
                meeting=mps.folder if mps else "",
            )
            shape = LinkShape(facts.heads, facts.dim, facts.layers)
            self._remote = self._remote or await self._reach_remote_vaults(self._weights, shape)
        except BaseException:
            self._forkserver = None
            await forkserver.close()
            raise
        self._forkserver_up, self._preloaded = True, facts
        if self._detector:
            self._detector.know(facts.openings)
        if not facts.placement.links_on_device:
            self.relay.vaults.open(self._remote or forkserver, shape)
        return forkserver

    def _open_vaults(self, slots: LinkSlots, forkserver: ForkServer) -> None:
        """Vaults compute at the same time as the service, with links on the device."""
        facts = self._preloaded
        assert facts is not None
        self.relay.sessions.keep_within(slots.free - ENDING_AT_ONCE)  # a session's vault was a spare one
        self.relay.core_lease.compute_beside()
        self.relay.vaults.open(self._remote or forkserver, LinkShape(facts.heads, facts.dim, facts.layers), slots)

    def _attention_ended(self) -> None:
        """Its users' prompts are gone. The mailboxes are the service's, and all begin anew."""
        log.warning("An attention process ended; the service is started again with all of them.")
        if self._service is not None:
            self._service.give_up()

    def _close_attention(self) -> None:
        if self._attention is not None:
            self._attention.close()
            self._attention = None

    async def _reach_remote_vaults(self, weights: int, shape: LinkShape) -> VaultHostClient | None:
        maker = self.evidence_maker
        return await reach_vault_host(
            self._settings.controller, weights, shape, maker.tee, maker.measurement, self._vault_host_changed
        )

    async def _host_evidence(self, nonce: bytes) -> dict[str, NodeEvidence]:
        return await self._remote.evidence(nonce) if self._remote else {}

    def _vault_host_changed(self) -> None:
        """Nobody's prompt goes to a machine whose evidence they did not see: who verified this node verifies anew."""
        self._keys.drop()
        self.sealed_requests.fail_all(ServiceUnavailable("The vault host changed.", hint="Send the request again."))

    def _service_ended(self) -> None:
        log.warning("The service process ended; starting it again.")
        self._service = None
        self._close_levels(Decodes.SERVICE)
        self.relay.service_gone()
        if self._placement.ends_with_service:
            self.relay.sessions.end_all()
            self.relay.vaults.close()
        self._close_attention()
        self._broken.set()

    def _mps_ended(self) -> None:
        """Nobody can compute: the fork server and all it forked are started anew with it."""
        log.warning("NVIDIA's MPS ended; starting again.")
        if self._forkserver is not None and self._forkserver_up:
            self._forkserver.kill()
            self._forkserver_ended()

    def _forkserver_ended(self) -> None:
        log.warning("The fork server ended, and all it forked; starting again.")
        self._forkserver, self._forkserver_up = None, False
        self._close_levels(Decodes.SERVICE, Decodes.VAULT)
        if self._service is not None:
            self._service.close()
            self._service = None
        self.relay.service_gone()
        self.relay.vaults.close()
        self.relay.sessions.end_all()
        self._close_attention()
        self._broken.set()

    def _close_levels(self, *decoded_by: Decodes) -> None:
        """Nobody is served at these until they were rehearsed again."""
        if self._ready is None:
            return  # nothing was offered yet
        closed = [level for level in self.serving.levels if LEVELS[level].decodes in decoded_by]
        self.relay.availability.close(closed)

    async def _rehearse_first(self) -> None:
        """A level that does not pass is not offered, and without its default level the node does not start. Where the
        vaults are on another machine that is away, their levels are offered and stay closed."""
        self._close_levels(Decodes.SERVICE, Decodes.VAULT)
        for _ in range(FIRST_REHEARSALS):
            failed = await self._rehearse()
            if not any(isinstance(reason, ServiceUnavailable) for reason in failed.values()):
                break
        default = default_of(self.serving.levels)
        for level, reason in failed.items():
            if self._remote and LEVELS[level].reader is Reader.VAULT and isinstance(reason, ServiceUnavailable):
                continue
            if level == default:
                raise ModelUnsupported(
                    f"A request at the default level, {level!r}, fails. {reason.message}",
                    hint="Serve another model, or another version of this one.",
                )
            log.error("The level %s is not offered, for a request at it fails. %s", level, reason.message)
            self._unfit |= {level}
            self.relay.availability.open(level)

    async def _rehearse(self) -> dict[LevelName, CloisterError]:
        """Try the closed levels, and open those that pass; why the others did not."""
        availability = self.relay.availability
        closed = [level for level in self.serving.levels if level in availability.closed]
        rehearsal = Rehearsal(self.relay, self.serving)
        await rehearsal.play(closed)
        for level in closed:
            if (reason := rehearsal.failed.get(level)) is not None:
                availability.close((level,), reason if isinstance(reason, VaultLost) else FAILED)
            else:
                availability.open(level)
        return rehearsal.failed

    async def _keep_rehearsed(self) -> None:
        """After each start of a service, until all levels have passed."""
        while True:
            await self._untried.wait()
            self._untried.clear()
            for attempt in itertools.count():
                await asyncio.sleep(SECONDS_BETWEEN_RESTARTS[min(attempt, len(SECONDS_BETWEEN_RESTARTS) - 1)])
                if self._service is None or not self.relay.availability.closed:
                    break
                for level, reason in (await self._rehearse()).items():
                    if isinstance(reason, QueueFull):
                        # Users have all there is. The same code passed when the node started.
                        self.relay.availability.open(level)
                    elif attempt == 0 and self._service is not None:
                        log.error("A request at the level %s fails. %s", level, reason.message)

    async def _keep(self) -> None:
        while True:
            await self._broken.wait()
            self._broken.clear()
            for attempt in itertools.count():
                await asyncio.sleep(SECONDS_BETWEEN_RESTARTS[min(attempt, len(SECONDS_BETWEEN_RESTARTS) - 1)])
                try:
                    await self._start_what_is_missing()
                    break
                except (CloisterError, OSError) as reason:
                    log.error("It does not start: %s.", type(reason).__name__)

    async def _keep_keys(self) -> None:
        """Channel keys go in time, also where nobody asks for anything."""
        while True:
            await asyncio.sleep(max(1.0, self._keys.due_s))
            self._keys.tend()
