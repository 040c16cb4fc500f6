"""The controller's handle on a front process: one that users' requests come through, apart from the controller and
started again when it dies. Requests under way die with it. The gateway is one, the parlour another."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from abc import ABC, abstractmethod
from time import time
from typing import ClassVar

import msgspec

from cloister.config import GatewaySettings
from cloister.controller.relay import Relay
from cloister.errors import ProtocolError, ServiceUnavailable, error_from_code
from cloister.messages.front import Serving, StartFront
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import StartFailed
from cloister.models.source import ModelFolder
from cloister.process.child import run_module
from cloister.process.endpoint import Channel
from cloister.process.hardening import WIPE_FREED_MEMORY

log = logging.getLogger(__name__)

SECONDS_BEFORE_RESTART = 0.5


class FrontProcess(ABC):
    """`start` runs it beside everything else; it takes requests from `serve` on."""

    name: ClassVar[str]
    module: ClassVar[str]
    says: ClassVar[object]
    grace_s: ClassVar[float]

    def __init__(
        self, relay: Relay, folder: ModelFolder, settings: GatewaySettings, *, allow_degraded: bool = False
    ) -> None:
        self.relay = relay
        self.settings = settings
        self._folder = folder
        self._allow_degraded = allow_degraded
        self._created = int(time())
        self._closing = False
        self._serving: Serving | None = None
        self._restart: asyncio.Task[None] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Let it import and read the tokenizer while the model loads elsewhere."""
        ours, theirs = socket.socketpair()
        self._process = run_module(self.module, theirs, **WIPE_FREED_MEMORY)
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.channel = Channel(ours, self.says, self._receive, self._ended)
        self.number = self.relay.add_front(self.channel)
        settings = self.settings.model_dump_json().encode()
        folder = self._folder
        self.channel.send(
            StartFront(VERSION, settings, folder.name, str(folder.path), self._created, self._allow_degraded)
        )

    @property
    def pid(self) -> int | None:
        """The process that was started, for those who watch it."""
        return self._process.pid if self._process else None

    async def open(self, serving: Serving) -> None:
        """Have it take requests."""
        self._serving = serving
        self.channel.send(serving)
        await self._open

    async def close(self) -> None:
        """End it. What it is doing gets as much time as its kind allows."""
        self._closing = True
        if self._restart:
            self._restart.cancel()
        if (process := self._process) is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, self.grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
        self.channel.close()

    @abstractmethod
    def opens(self, message: msgspec.Struct) -> bool:
        """Whether this is what it says, once, when it can take requests."""

    @abstractmethod
    def hear(self, message: msgspec.Struct) -> None:
        """What else it says."""

    def gone(self) -> None:
        """It ended: whoever waits for what only this process had is told."""
        self.relay.remove_front(self.number)

    def _receive(self, message: msgspec.Struct) -> None:
        if isinstance(message, StartFailed) or self.opens(message):
            if self._open.done():
                raise ProtocolError("A front sent a message out of turn.")
            if isinstance(message, StartFailed):
                self._open.set_exception(error_from_code(message.code, message.message, hint=message.hint))
            else:
                self._open.set_result(None)
        else:
            self.hear(message)

    def _ended(self) -> None:
        self.gone()
        if self._process is not None:
            self._process.kill()
        if not self._open.done():
            self._open.set_exception(ServiceUnavailable(f"The {self.name} ended while it started."))
            self._open.exception()  # nobody may be waiting yet
        if self._serving is not None and not self._closing and self._restart is None:
            self._restart = asyncio.create_task(self._start_again(self._serving))

    async def _start_again(self, serving: Serving) -> None:
        while True:
            log.warning("The %s process ended; starting it again.", self.name)
            if self._process is not None:
                await asyncio.to_thread(self._process.wait)
            await asyncio.sleep(SECONDS_BEFORE_RESTART)
            self.start()
            try:
                await self.open(serving)
                break
            except Exception as reason:
                log.error("The %s does not start: %s.", self.name, type(reason).__name__)
        self._restart = None
