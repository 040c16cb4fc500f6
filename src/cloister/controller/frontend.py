"""The handles on gateway and sealed API: each is started again when it ends, and its requests end with it."""

import asyncio
import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from cloister.config import GatewaySettings, Settings
from cloister.controller.process import Controller
from cloister.errors import CloisterError
from cloister.keys import load_keys
from cloister.messages import controller_frontend as wire
from cloister.messages.controller_gateway import (
    AskEvidence,
    AskKeyConfigurations,
    BeginDrain,
    Drained,
    FromGateway,
    KeyConfigurations,
    Listening,
    OpenExchange,
    Sealed,
    ShowCertificate,
    TlsCertificate,
)
from cloister.messages.controller_sealed_api import ErrorReport, FromSealedApi, SealedApiReady
from cloister.messages.generation import Failed
from cloister.models.source import ModelFolder
from cloister.process.handle import ModuleHandle
from cloister.process.supervisor import Supervisor

log = logging.getLogger(__name__)


class FrontendProcess(ABC):
    """It imports and reads the tokenizer while the model loads elsewhere; it takes requests from `open` on."""

    name: ClassVar[str]
    module: ClassVar[str]
    says: ClassVar[object]
    ready: ClassVar[type[msgspec.Struct]]
    grace_s: ClassVar[float]  # to end what it is doing

    def __init__(
        self, controller: Controller, folder: ModelFolder, settings: Settings, keys: tuple[wire.KeyEntry, ...]
    ) -> None:
        self.controller = controller
        self.settings = settings.gateway
        self._folder, self._keys = folder, keys
        self._allow_degraded = settings.controller.allow_degraded_sandbox
        self._created = int(time())
        self._serving: wire.Serving | None = None
        self._supervisor = Supervisor(self.name, self._open, self._kill)
        self._launch()

    async def open(self, serving: wire.Serving) -> msgspec.Struct:
        self._serving = serving
        await self._supervisor.start()
        self._supervisor.keep()
        return self._handle.ready.result()

    def admit(self, keys: tuple[wire.KeyEntry, ...]) -> None:
        self._keys = keys
        self._handle.send(wire.AdmitKeys(keys))

    async def close(self) -> None:
        await self._supervisor.close()
        await self._handle.close(self.grace_s, terminate=True)

    @abstractmethod
    def handle(self, message: msgspec.Struct) -> None:
        """Every message but the one that it is ready."""

    def gone(self) -> None:
        self.controller.relay.remove_frontend(self.number)

    def _launch(self) -> None:
        handle = ModuleHandle(self.name, self.module, self.says, self.ready, handle=self.handle, on_end=self._ended)
        self._handle: ModuleHandle[msgspec.Struct] = handle
        self.endpoint = handle.endpoint
        self.number = self.controller.relay.add_frontend(self.endpoint)
        settings = self.settings.model_dump_json().encode()
        path, name = str(self._folder.path), self.settings.served_model_name or self._folder.name
        handle.send(wire.StartFrontend(settings, name, path, self._created, self._allow_degraded, self._keys))

    async def _open(self) -> None:
        assert self._serving is not None
        if self._supervisor.restarts:
            self._launch()
        self._handle.send(self._serving)
        await self._handle.ready

    async def _kill(self) -> None:
        self._handle.kill()
        await self._handle.ends()

    def _ended(self) -> None:
        self.gone()
        self._supervisor.ended()


class Gateway(FrontendProcess):
    """The HTTP edge; listens where the settings say. Sealed requests pass it as bytes that it cannot open."""

    name = "gateway"
    module = "cloister.gateway"
    says = FromGateway
    ready = Listening
    grace_s = 1.5
    _drained: asyncio.Event | None = None
    _certificate: TlsCertificate | None = None

    def show(self, certificate: TlsCertificate) -> None:
        """From the next connection on, also after a restart."""
        self._certificate = certificate
        self._handle.send(ShowCertificate(certificate))

    def _launch(self) -> None:
        super()._launch()
        if self._certificate:
            self.show(self._certificate)

    async def drain(self, most_s: float) -> None:
        """Until all requests have ended that run, or for so long."""
        self._drained = asyncio.Event()
        self._handle.send(BeginDrain())
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._drained.wait()

    async def serve(self, serving: wire.Serving) -> str:
        listening = await self.open(serving)
        assert isinstance(listening, Listening)
        # A restarted gateway listens at the same address.
        self.settings = self.settings.model_copy(update={"port": urlsplit(listening.url).port})
        return listening.url

    def handle(self, message: msgspec.Struct) -> None:
        match message:
            case Sealed():
                self.controller.sealed_requests.accept(self.number, self.endpoint, message)
            case wire.BytesTaken():
                self.controller.sealed_requests.taken(self.number, message)
            case wire.CancelSealed():
                self.controller.sealed_requests.leave(self.number, message)
            case OpenExchange():
                self.controller.sealed_requests.open_exchange(self.endpoint, message)
            case AskKeyConfigurations():
                self.endpoint.send(
                    KeyConfigurations(message.request_id, self.controller.sealed_requests.configurations)
                )
            case Drained() if self._drained:
                self._drained.set()
            case AskEvidence():
                self.controller.evidence_maker.answer(self.endpoint, message)
            case _:
                self.controller.relay.from_frontend(self.number, message)

    def gone(self) -> None:
        super().gone()
        self.controller.sealed_requests.gateway_gone(self.number)
        if self._drained:
            self._drained.set()


class SealedApi(FrontendProcess):
    name = "sealed API"
    module = "cloister.sealed_api"
    says = FromSealedApi
    ready = SealedApiReady
    grace_s = 0.0

    async def _open(self) -> None:
        await super()._open()
        self.controller.sealed_requests.sealed_api_up(self.endpoint)

    def handle(self, message: msgspec.Struct) -> None:
        match message:
            case wire.SealedPart() | Failed():
                self.controller.sealed_requests.from_sealed_api(message)
            case ErrorReport():
                log.error("The sealed API met an unexpected error (%s).", message.kind)
            case _:
                self.controller.relay.from_frontend(self.number, message)

    def gone(self) -> None:
        super().gone()
        self.controller.sealed_requests.sealed_api_gone()


Admit = Callable[[tuple[wire.KeyEntry, ...]], None]


class Admission:
    """The keys file is read again on SIGHUP; requests that a revoked key has under way are answered."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._admit: Sequence[Admit] = ()
        self._has_terminal = _has_terminal()
        self.keys = load_keys(settings).entries

    def watch(self, *admit: Admit) -> None:
        self._admit = admit
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.hung_up)

    def hung_up(self) -> None:
        """An unusable file changes nothing. A terminal that is closed sends SIGHUP too; then this process must end."""
        if self._has_terminal and not _has_terminal():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        if self._settings.keys_file is None:
            if self._settings.tls_cert is None:
                log.warning("There is no keys file to read again: `cloister serve --keys FILE`.")
            return
        try:
            self.keys = load_keys(self._settings).entries
        except CloisterError as wrong:
            log.error("The keys stay as they were. %s", wrong)
            return
        for admit in self._admit:
            admit(self.keys)
        log.warning("The keys file was read again; keys it admits: %d.", len(self.keys))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
