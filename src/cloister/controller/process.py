"""The parts of a node, in order of start and end. With this process the kernel ends all others (PDEATHSIG)."""

import asyncio
from time import time

from cloister.attest.evidence import Statement
from cloister.config import Settings
from cloister.controller.attested_settings import attested_settings
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.detector import find_detector
from cloister.controller.engine_process import EngineAndVaults, EngineProcess
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.external_engine import ExternalEngine, find_engine
from cloister.controller.external_level import ExternalLevel, find_offer, measured_packages
from cloister.controller.offer import Offer
from cloister.controller.relay import Relay
from cloister.controller.sealed_requests import SealedRequests
from cloister.controller.template_file import find_templates
from cloister.controller.token_gate import TokenGate
from cloister.controller.vault_host import VaultHostClient, reach_vault_host
from cloister.errors import ServiceUnavailable
from cloister.levels import LEVELS, Decodes
from cloister.link.memory import LinkShape
from cloister.messages.controller_frontend import Serving
from cloister.models.source import ModelFolder, is_plain
from cloister.process.supervisor import cancelled

Computing = ComputeProcesses | EngineProcess


class Attestation:
    """The node's evidence. Renews `keys` in time."""

    def __init__(
        self, folder: ModelFolder, settings: Settings, keys: ChannelKeys, compute: Computing, relay: Relay
    ) -> None:
        self.settings = attested_settings(settings)
        self._model, self._keys, self._compute, self._relay = folder.name, keys, compute, relay
        self._started = int(time())
        packages, shown, hosts = measured_packages(settings), lambda: keys.shown, compute.vault_host_evidence
        self.evidence_maker = EvidenceMaker.of(settings.controller, packages, shown, self._statement, vault_hosts=hosts)
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.evidence_maker.start()
        self._renewing = asyncio.create_task(self._renew_keys())

    async def close(self) -> None:
        await self.evidence_maker.close()
        await cancelled(self._renewing)

    async def _statement(self) -> Statement:
        serving, settings = self._relay.serving(), self.settings
        digest = await self._compute.weights_digest()
        return Statement(
            self._model, digest, settings, settings.hash, serving.levels, serving.missing_layers, self._started
        )

    async def _renew_keys(self) -> None:
        """Also while no request comes: an old key must not stay in memory."""
        while True:
            await asyncio.sleep(max(1.0, self._keys.due_s))
            self._keys.tend()


class Controller:
    def __init__(self, folder: ModelFolder, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._keys = ChannelKeys()
        self.sealed_requests = SealedRequests(self._keys)
        self.relay = Relay(settings.controller, settings.engine.cores, self.sealed_requests.lock)
        engine = find_engine(settings, folder)
        self.compute = self._computing(engine)
        found = find_offer(settings, folder)
        self._external = found if isinstance(found, ExternalLevel) else None
        if self._external:
            self.relay.add_level(self._external)
        self.offer = Offer(settings, self.relay, self.compute, found if isinstance(found, str) else None, engine)
        self.token_gate = self.relay.token_gate = TokenGate(settings.gateway)
        self.attestation = Attestation(folder, settings, self._keys, self.compute, self.relay)
        self.evidence_maker = self.attestation.evidence_maker
        shares = engine is None or any(LEVELS[level].examined for level in engine.levels)
        self._detector = find_detector(settings.controller, self.relay.shared.labelled) if shares else None
        self._templates = find_templates(settings.controller, folder.path) if shares else None

    def _computing(self, engine: ExternalEngine | None) -> Computing:
        def on_up() -> None:
            self.offer.service_up()

        def on_down(*decoded_by: Decodes) -> None:
            self.offer.close_levels(*decoded_by)

        if engine is not None:
            self.relay.serve_with(engine)
            kind = EngineAndVaults if is_plain(self._folder.path) else EngineProcess
            return kind(engine, self._folder, self._settings, self.relay, on_up, on_down)
        reach = self._reach_vault_host
        return ComputeProcesses(self._folder, self._settings, self.relay, reach, on_up=on_up, on_down=on_down)

    @property
    def notes(self) -> tuple[str, ...]:
        return (self._external.banner(self._settings),) if self._external else ()

    async def start(self) -> Serving:
        self.compute.launch()
        await self.attestation.start()
        await self.compute.start()
        await self.offer.rehearse_first()
        if self._detector and self.compute.preloaded:
            self._detector.know(self.compute.preloaded.openings)
            self._detector.start()
            self.relay.shared.examine = self._detector.classify
        if self._templates:
            self._templates.start(self.relay.sharing)
        self.compute.keep()
        self.offer.keep_rehearsed()
        if self._external:
            self._external.start(self._folder, self._settings, self.relay.serving(), self.attestation.settings.parties)
        return self.relay.serving()

    async def close(self) -> None:
        await self.attestation.close()
        await self.token_gate.close()
        await self.offer.close()
        if self._external:
            await self._external.close()
        if self._detector:
            await self._detector.close()
        if self._templates:
            await self._templates.close()
        await self.compute.close()
        await self.relay.meter.close()

    async def _reach_vault_host(self, weights: int, shape: LinkShape) -> VaultHostClient | None:
        maker = self.evidence_maker
        return await reach_vault_host(
            self._settings.controller, weights, shape, maker.tee, maker.measurement, self._vault_host_changed
        )

    def _vault_host_changed(self) -> None:
        """No prompt goes to a machine whose evidence its sender did not see: clients must verify this node again."""
        self._keys.drop()
        self.sealed_requests.fail_all(ServiceUnavailable("The vault host changed.", hint="Send the request again."))
