"""The controller's handle on the nursery, the preloaded process that the service and all vaults are forked from.

The nursery never sees user data. When it ends, all it forked end too: whoever owns this handle starts again.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from cloister.config import Settings
from cloister.errors import ProtocolError, ServiceUnavailable, error_from_code
from cloister.messages.generation import VERSION
from cloister.messages.lifecycle import StartFailed
from cloister.messages.nursery import FromNursery, Preload, Preloaded, Spawn, Spawned
from cloister.process.child import Child, run_module
from cloister.process.endpoint import Channel

GOODBYE_S = 5.0


class Nursery:
    """Start it with `start`; `on_end` is called if it ends before `close`."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._closing = False
        self._numbers = itertools.count(1)
        self._unborn: dict[int, Child] = {}
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._preloaded: asyncio.Future[Preloaded] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Run it, so that it can import what it needs while the weights are packed."""
        ours, theirs = socket.socketpair()
        self._process = run_module("cloister.nursery", theirs)
        self._channel = Channel(ours, FromNursery, self._receive, self._ended)

    async def preload(self, name: str, path: Path, settings: Settings, weights: int) -> Preloaded:
        """Hand it the sealed weights; what it says when it is ready to fork."""
        if self._channel is None:
            raise ServiceUnavailable("The nursery is not running.")
        allow = settings.controller.allow_degraded_sandbox
        engine = settings.engine.model_dump_json().encode()
        self._channel.send(Preload(VERSION, name, str(path), engine, allow), (weights,))
        return await self._preloaded

    def spawn(self, role: Literal["service", "vault"], *descriptors: int) -> tuple[Child, socket.socket]:
        """Have a child forked, with these descriptors beside its control socket; our end of that socket."""
        if self._channel is None:
            raise ServiceUnavailable("The nursery is not running.")
        number, child = next(self._numbers), Child()
        self._unborn[number] = child
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel.send(Spawn(number, role), (theirs.fileno(), *descriptors))
        return child, ours

    async def close(self) -> None:
        """End it, and with it all its children: its pid namespace ends only when nobody is left in it."""
        self._closing = True
        if self._channel:
            self._channel.say_goodbye()
        if self._process:
            try:
                await asyncio.to_thread(self._process.wait, GOODBYE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                await asyncio.to_thread(self._process.wait)
        if self._channel:
            self._channel.close()

    def _receive(self, message: StartFailed | Preloaded | Spawned) -> None:
        match message:
            case Spawned() if self._channel and message.child in self._unborn:
                self._unborn.pop(message.child).born(self._channel.take_descriptor())
            case Preloaded() if not self._preloaded.done():
                self._preloaded.set_result(message)
            case StartFailed() if not self._preloaded.done():
                self._preloaded.set_exception(error_from_code(message.code, message.message, hint=message.hint))
            case _:
                raise ProtocolError("The nursery sent a message out of turn.")

    def _ended(self) -> None:
        if self._process and not self._closing:
            self._process.kill()
            self._process.wait()
        if not self._preloaded.done():
            self._preloaded.set_exception(ServiceUnavailable("The nursery ended while it started."))
            self._preloaded.exception()  # nobody may be waiting yet
        elif self._preloaded.exception() is None and not self._closing:
            self._on_end()
