"""How this node proves what it is: channel keys, and evidence that binds them to machine, release and statement."""

import asyncio
from time import time

from cloister.attest.evidence import Statement
from cloister.attest.machine import find_attester
from cloister.config import Settings
from cloister.controller.attested_settings import attested_settings
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.evidence import EvidenceMaker, running_release
from cloister.controller.external_level import measured_packages
from cloister.controller.gpu_evidence import GpuEvidenceKeeper
from cloister.controller.relay import Relay
from cloister.models.source import ModelFolder


class Attestation:
    """`start` before any weights are read: a node whose GPUs cannot be shown does not start. Renews `keys` in time."""

    def __init__(
        self, folder: ModelFolder, settings: Settings, keys: ChannelKeys, compute: ComputeProcesses, relay: Relay
    ) -> None:
        self.settings = attested_settings(settings)
        self._model, self._keys, self._compute, self._relay = folder.name, keys, compute, relay
        self._started = int(time())
        self._gpus = GpuEvidenceKeeper(settings.controller.gpu_evidence)
        self.evidence_maker = EvidenceMaker(
            find_attester(settings.controller.attester),
            running_release(settings.controller.release, measured_packages(settings)),
            lambda: keys.shown,
            self._statement,
            gpus=self._gpus,
            vault_hosts=compute.vault_host_evidence,
        )
        self._renewing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._gpus.start()
        self._renewing = asyncio.create_task(self._renew_keys())

    async def close(self) -> None:
        self.evidence_maker.close()
        await self._gpus.close()
        if self._renewing:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

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
