"""The controller: the parts of a node, in the order in which they start and end.

When this process ends, for whatever reason, the kernel ends all others (PDEATHSIG, pid namespaces).
"""

from __future__ import annotations

from cloister.config import Settings
from cloister.controller.attestation import Attestation
from cloister.controller.channel_keys import ChannelKeys
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.detector import find_detector
from cloister.controller.evidence import EvidenceMaker
from cloister.controller.offer import Offer
from cloister.controller.relay import Relay
from cloister.controller.sealed_requests import SealedRequests
from cloister.controller.vault_host import VaultHostClient, reach_vault_host
from cloister.errors import ServiceUnavailable
from cloister.link.memory import LinkShape
from cloister.messages.controller_frontend import Serving
from cloister.models.source import ModelFolder
from cloister_mpc.client_keeper import MpcClientKeeper
from cloister_mpc.offer import why_not_mpc


class Controller:
    """Frontends speak to its `relay`; `sealed_requests` takes in requests that came sealed; `evidence_maker` shows what
    this node is."""

    def __init__(self, folder: ModelFolder, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._keys = ChannelKeys()
        self.sealed_requests = SealedRequests(self._keys)
        self.relay = Relay(settings.controller, lambda: self.serving, settings.engine.cores, self.sealed_requests.lock)
        self.compute = ComputeProcesses(
            folder,
            settings,
            self.relay,
            self._reach_vault_host,
            on_up=lambda: self.offer.rehearse_soon(),
            on_down=lambda *decoded_by: self.offer.close_levels(*decoded_by),
        )
        self.offer = Offer(settings, self.relay, self.compute, why_not_mpc(settings, folder))
        self.attestation = Attestation(folder, settings, self._keys, self.compute, self.offer)
        self._detector = find_detector(settings.controller, self.relay.labels.labelled)
        self._mpc_client: MpcClientKeeper | None = None

    @property
    def serving(self) -> Serving:
        return self.offer.serving

    @property
    def evidence_maker(self) -> EvidenceMaker:
        return self.attestation.evidence_maker

    async def start(self) -> Serving:
        self.compute.launch()
        await self.attestation.start()
        await self.compute.start()
        await self.offer.rehearse_first()
        if self._detector and self.compute.preloaded:
            self._detector.know(self.compute.preloaded.openings)
            self._detector.start()
            self.relay.labels.examine = self._detector.classify
        self.compute.keep()
        self.offer.keep_rehearsed()
        if self.offer.why_not_mpc is None:
            self._offer_mpc(self.serving)
        return self.serving

    async def close(self) -> None:
        """End everything, and wait until it has ended."""
        await self.attestation.close()
        await self.offer.close()
        if self._mpc_client:
            await self._mpc_client.close()
        if self._detector:
            await self._detector.close()
        await self.compute.close()

    def _offer_mpc(self, serving: Serving) -> None:
        mpc, parties = self._settings.mpc, self.attestation.settings.parties
        client = self._mpc_client = MpcClientKeeper(
            self._folder,
            mpc,
            self.relay.mpc,
            vocabulary=serving.vocabulary,
            max_context=serving.max_context,
            identity=b"" if parties is None else parties.identity,
        )
        if mpc.mode == "local" or mpc.parties is not None:
            client.start()
        self.relay.mpc.open(client)

    async def _reach_vault_host(self, weights: int, shape: LinkShape) -> VaultHostClient | None:
        maker = self.evidence_maker
        return await reach_vault_host(
            self._settings.controller, weights, shape, maker.tee, maker.measurement, self._vault_host_changed
        )

    def _vault_host_changed(self) -> None:
        """No prompt goes to a machine whose evidence its sender did not see: clients must verify this node again."""
        self._keys.drop()
        self.sealed_requests.fail_all(ServiceUnavailable("The vault host changed.", hint="Send the request again."))
