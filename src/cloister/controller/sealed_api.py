"""The controller's handle on the sealed API, which answers sealed requests. It has no network and no file."""

from __future__ import annotations

import logging

import msgspec

from cloister.config import GatewaySettings
from cloister.controller.front import FrontProcess
from cloister.controller.relay import Relay
from cloister.controller.secure import SecureDesk
from cloister.messages.front import SealedPart, Serving
from cloister.messages.generation import Failed
from cloister.messages.sealed_api import FromSealedApi, Mishap, Settled
from cloister.models.source import ModelFolder

log = logging.getLogger(__name__)


class SealedApi(FrontProcess):
    """Gets sealed requests from the desk, and asks the relay as any front does."""

    name = "sealed API"
    module = "cloister.sealed_api"
    says = FromSealedApi
    ready = Settled
    grace_s = 2.0

    def __init__(
        self,
        relay: Relay,
        secure: SecureDesk,
        folder: ModelFolder,
        settings: GatewaySettings,
        *,
        allow_degraded: bool = False,
    ) -> None:
        super().__init__(relay, folder, settings, allow_degraded=allow_degraded)
        self._secure = secure

    async def open(self, serving: Serving) -> msgspec.Struct:
        settled = await super().open(serving)
        self._secure.sealed_api_up(self.endpoint)
        return settled

    def hear(self, message: msgspec.Struct) -> None:
        match message:
            case SealedPart() | Failed():
                self._secure.from_sealed_api(message)
            case Mishap():
                log.error("The sealed API: %s", message.line)
            case _:
                self.relay.from_front(self.number, message)

    def gone(self) -> None:
        super().gone()
        self._secure.sealed_api_gone()
