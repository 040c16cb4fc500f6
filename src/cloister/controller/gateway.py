"""The controller's handle on the gateway process: the HTTP edge, apart from the controller and started again when it
dies. Requests under way die with it: their users' connections do."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
from time import time
from urllib.parse import urlsplit

import msgspec

from cloister.config import GatewaySettings
from cloister.controller.channel import Channel
from cloister.controller.child import run_module
from cloister.controller.relay import Relay
from cloister.errors import ProtocolError, ServiceUnavailable, error_from_code
from cloister.hardening import WIPE_FREED_MEMORY
from cloister.messages.front import FromGateway, Listening, Serving, StartGateway
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import StartFailed
from cloister.models.source import ModelFolder

log = logging.getLogger(__name__)

GRACE_S = 15.0
SECONDS_BEFORE_RESTART = 0.5


class Gateway:
    """`start` runs it beside everything else; it takes requests from `serve` on."""

    def __init__(self, relay: Relay, folder: ModelFolder, settings: GatewaySettings) -> None:
        self._relay = relay
        self._folder = folder
        self._settings = settings
        self._created = int(time())
        self._closing = False
        self._serving: Serving | None = None
        self._restart: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Let it import and read the tokenizer while the model loads elsewhere."""
        ours, theirs = socket.socketpair()
        self._process: subprocess.Popen[bytes] = run_module("cloister.gateway", theirs, **WIPE_FREED_MEMORY)
        self._listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._channel = Channel(ours, FromGateway, self._receive, self._ended)
        self._number = self._relay.add_front(self._channel)
        settings = self._settings.model_dump_json().encode()
        self._channel.send(StartGateway(VERSION, settings, self._folder.name, str(self._folder.path), self._created))

    async def serve(self, serving: Serving) -> str:
        """Open the doors; the URL it listens on."""
        self._serving = serving
        self._channel.send(serving)
        url = await self._listening
        # Should it have to start again, then at the same address.
        self._settings = self._settings.model_copy(update={"port": urlsplit(url).port})
        return url

    async def close(self) -> None:
        """Running answers get time to end."""
        self._closing = True
        if self._restart:
            self._restart.cancel()
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        self._channel.close()

    def _receive(self, message: msgspec.Struct) -> None:
        match message:
            case Listening() if not self._listening.done():
                self._listening.set_result(message.url)
            case StartFailed() if not self._listening.done():
                self._listening.set_exception(error_from_code(message.code, message.message, hint=message.hint))
            case Listening() | StartFailed():
                raise ProtocolError("The gateway sent a message out of turn.")
            case _:
                self._relay.from_gateway(self._number, message)

    def _ended(self) -> None:
        self._relay.remove_front(self._number)
        self._process.kill()
        if not self._listening.done():
            self._listening.set_exception(ServiceUnavailable("The gateway ended while it started."))
            self._listening.exception()  # nobody may be waiting yet
        if self._serving is not None and not self._closing and self._restart is None:
            self._restart = asyncio.create_task(self._start_again(self._serving))

    async def _start_again(self, serving: Serving) -> None:
        while True:
            log.warning("The gateway process ended; starting it again.")
            await asyncio.to_thread(self._process.wait)
            await asyncio.sleep(SECONDS_BEFORE_RESTART)
            self.start()
            try:
                await self.serve(serving)
                break
            except Exception as reason:
                log.error("The gateway does not start: %s.", type(reason).__name__)
        self._restart = None
