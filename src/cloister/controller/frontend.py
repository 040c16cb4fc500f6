"""The controller's handles on the frontends: gateway and sealed API.

Each is a process apart, started again when it dies. Its requests under way die with it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from time import time
from typing import ClassVar
from urllib.parse import urlsplit

import msgspec

from cloister.config import Settings
from cloister.controller.process import Controller
from cloister.messages.controller_frontend import (
    AdmitKeys,
    BytesTaken,
    CancelSealed,
    KeyEntry,
    SealedPart,
    Serving,
    StartFrontend,
)
from cloister.messages.controller_gateway import AskEvidence, FromGateway, Listening, Sealed
from cloister.messages.controller_sealed_api import ErrorReport, FromSealedApi, SealedApiReady
from cloister.messages.generation import Failed
from cloister.messages.types import VERSION
from cloister.models.source import ModelFolder
from cloister.process.handle import ModuleHandle

log = logging.getLogger(__name__)

SECONDS_BEFORE_RESTART = 0.5


class FrontendProcess(ABC):
    """It imports and reads the tokenizer while the model loads elsewhere; it takes requests from `open` on."""

    name: ClassVar[str]
    module: ClassVar[str]
    says: ClassVar[object]
    ready: ClassVar[type[msgspec.Struct]]
    grace_s: ClassVar[float]

    def __init__(
        self, controller: Controller, folder: ModelFolder, settings: Settings, keys: tuple[KeyEntry, ...]
    ) -> None:
        self.controller = controller
        self.settings = settings.gateway
        self._folder = folder
        self._keys = keys
        self._allow_degraded = settings.controller.allow_degraded_sandbox
        self._created = int(time())
        self._closing = False
        self._serving: Serving | None = None
        self._restart: asyncio.Task[None] | None = None
        self._start()

    def _start(self) -> None:
        handle = ModuleHandle(self.name, self.module, self.says, self.ready, handle=self.handle, on_end=self._ended)
        self._handle: ModuleHandle[msgspec.Struct] = handle
        self.endpoint = handle.endpoint
        self.number = self.controller.relay.add_frontend(self.endpoint)
        settings = self.settings.model_dump_json().encode()
        path, name = str(self._folder.path), self.settings.served_model_name or self._folder.name
        handle.send(StartFrontend(VERSION, settings, name, path, self._created, self._allow_degraded, self._keys))

    async def open(self, serving: Serving) -> msgspec.Struct:
        """Have it take requests; what it says when it does."""
        self._serving = serving
        self._handle.send(serving)
        return await self._handle.ready

    def admit(self, keys: tuple[KeyEntry, ...]) -> None:
        """From now on these keys and no others; one that is started again gets them too."""
        self._keys = keys
        self._handle.send(AdmitKeys(keys))

    async def close(self) -> None:
        """End it. What it is doing gets as much time as its kind allows."""
        self._closing = True
        if self._restart:
            self._restart.cancel()
        await self._handle.close(self.grace_s, terminate=True)

    @abstractmethod
    def handle(self, message: msgspec.Struct) -> None:
        """What it says beside being ready."""

    def gone(self) -> None:
        """It ended: tell whoever waits for what only this process had."""
        self.controller.relay.remove_frontend(self.number)

    def _ended(self) -> None:
        self.gone()
        if not self._closing:
            self._handle.kill()
        if self._serving is not None and not self._closing and self._restart is None:
            self._restart = asyncio.create_task(self._start_again(self._serving))

    async def _start_again(self, serving: Serving) -> None:
        while True:
            log.warning("The %s process ended; starting it again.", self.name)
            await self._handle.ends()
            await asyncio.sleep(SECONDS_BEFORE_RESTART)
            self._start()
            try:
                await self.open(serving)
                break
            except Exception as reason:
                log.error("The %s does not start: %s.", self.name, type(reason).__name__)
        self._restart = None


class Gateway(FrontendProcess):
    """The HTTP edge; listens where the settings say. Sealed requests pass it as bytes nobody reads there."""

    name = "gateway"
    module = "cloister.gateway"
    says = FromGateway
    ready = Listening
    grace_s = 1.5

    async def serve(self, serving: Serving) -> str:
        """Have it listen; the URL."""
        listening = await self.open(serving)
        assert isinstance(listening, Listening)
        # If it starts again, then at the same address.
        self.settings = self.settings.model_copy(update={"port": urlsplit(listening.url).port})
        return listening.url

    def handle(self, message: msgspec.Struct) -> None:
        match message:
            case Sealed():
                self.controller.sealed_requests.accept(self.number, self.endpoint, message)
            case BytesTaken():
                self.controller.sealed_requests.taken(self.number, message)
            case CancelSealed():
                self.controller.sealed_requests.leave(self.number, message)
            case AskEvidence():
                self.controller.evidence_maker.answer(self.endpoint, message)
            case _:
                self.controller.relay.from_frontend(self.number, message)

    def gone(self) -> None:
        super().gone()
        self.controller.sealed_requests.gateway_gone(self.number)


class SealedApi(FrontendProcess):
    """Answers sealed requests; asks the relay as any frontend does."""

    name = "sealed API"
    module = "cloister.sealed_api"
    says = FromSealedApi
    ready = SealedApiReady
    grace_s = 0.0

    async def open(self, serving: Serving) -> msgspec.Struct:
        settled = await super().open(serving)
        self.controller.sealed_requests.sealed_api_up(self.endpoint)
        return settled

    def handle(self, message: msgspec.Struct) -> None:
        match message:
            case SealedPart() | Failed():
                self.controller.sealed_requests.from_sealed_api(message)
            case ErrorReport():
                log.error("The sealed API met an unexpected error (%s).", message.kind)
            case _:
                self.controller.relay.from_frontend(self.number, message)

    def gone(self) -> None:
        super().gone()
        self.controller.sealed_requests.sealed_api_gone()
