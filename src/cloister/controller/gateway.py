"""The controller's handle on the gateway, the HTTP edge. Sealed requests pass it as bytes nobody reads there."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from cloister.config import GatewaySettings
from cloister.controller.evidence import Notary
from cloister.controller.front import FrontProcess
from cloister.controller.relay import Relay
from cloister.controller.secure import SecureDesk
from cloister.messages.front import AskEvidence, FromGateway, Leave, Listening, Sealed, Serving, Taken
from cloister.models.source import ModelFolder


class Gateway(FrontProcess):
    """Listens where the settings say."""

    name = "gateway"
    module = "cloister.gateway"
    says = FromGateway
    ready = Listening
    grace_s = 15.0

    def __init__(
        self, relay: Relay, secure: SecureDesk, notary: Notary, folder: ModelFolder, settings: GatewaySettings
    ) -> None:
        super().__init__(relay, folder, settings)
        self._secure = secure
        self._notary = notary

    async def serve(self, serving: Serving) -> str:
        """Open the doors; the URL it listens on."""
        listening = await self.open(serving)
        assert isinstance(listening, Listening)
        # Should it have to start again, then at the same address.
        self.settings = self.settings.model_copy(update={"port": urlsplit(listening.url).port})
        return listening.url

    def hear(self, message: msgspec.Struct) -> None:
        match message:
            case Sealed():
                self._secure.accept(self.number, self.endpoint, message)
            case Taken():
                self._secure.taken(self.number, message)
            case Leave():
                self._secure.leave(self.number, message)
            case AskEvidence():
                self._notary.answer(self.endpoint, message)
            case _:
                self.relay.from_front(self.number, message)

    def gone(self) -> None:
        super().gone()
        self._secure.gateway_gone(self.number)
