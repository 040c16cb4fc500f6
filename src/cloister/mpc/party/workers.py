"""An epoch's workers as their party sees them, engine and tunnel: started together, ended together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cloister.errors import CloisterError, PartyLost
from cloister.messages.mpc import (
    Established,
    FromEngine,
    FromTunnel,
    Listening,
    Load,
    Loaded,
    StartEngine,
    StartTunnel,
)
from cloister.mpc.config import PartiesConfig
from cloister.mpc.connection import Connection
from cloister.process.child import run_module

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class Workers:
    """`hear` gets what the engine says once `start` and `join` are over; `ended` is called once, unless we end it."""

    def __init__(
        self,
        config: PartiesConfig,
        rank: int,
        hear: Callable[[msgspec.Struct], None],
        ended: Callable[[str], None],
    ) -> None:
        self._config = config
        self._rank = rank
        self._hear = hear
        self._ended = ended
        self._folder = Path(tempfile.mkdtemp(prefix="cloister-party-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._open = True

    async def start(self, key: bytes) -> None:
        """Both processes are up."""
        settings = msgspec.json.encode(self._config)
        engine = await self._spawn("cloister.mpc.party.engine", FromEngine)
        tunnel = await self._spawn("cloister.mpc.party.tunnel", FromTunnel)
        await engine.send(StartEngine(settings, self._rank, str(self._folder)))
        await tunnel.send(StartTunnel(settings, self._rank, str(self._folder), key))
        await self._expect(tunnel, Listening)
        await self._expect(engine, Listening)

    async def join(self, load: Load) -> None:
        """Linked with the other parties' engines, weights loaded."""
        engine, tunnel = self._connections
        self._tasks.append(asyncio.create_task(self._watch_tunnel(tunnel)))
        await engine.send(load)
        await self._expect(engine, Loaded)
        await tunnel.send(Established())
        self._tasks.append(asyncio.create_task(self._listen(engine)))

    async def send(self, message: msgspec.Struct) -> None:
        """To the engine; waits while it is busy."""
        with suppress(ConnectionError):
            await self._connections[0].send(message)

    def post(self, message: msgspec.Struct) -> None:
        """To the engine, a small message, at once."""
        self._connections[0].post(message)

    def close(self) -> None:
        """Kill both. What the engine held is gone with it."""
        if not self._open:
            return
        self._open = False
        for task in self._tasks:
            task.cancel()
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.wait()  # killed: it takes milliseconds, or as long as freeing its memory does
        for connection in self._connections:
            connection.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _spawn(self, module: str, union: object) -> Connection:
        ours, theirs = socket.socketpair()
        self._processes.append(run_module(module, theirs, **_ONE_THREAD))
        connection = Connection(*await asyncio.open_connection(sock=ours), union)
        self._connections.append(connection)
        return connection

    async def _expect(self, connection: Connection, kind: type[msgspec.Struct]) -> None:
        message = await connection.receive(self._config.limits.start_s)
        if not isinstance(message, kind):
            raise PartyLost("A process of this party did not start.", hint="Its log says more.")

    async def _listen(self, engine: Connection) -> None:
        try:
            while (message := await engine.receive()) is not None:
                self._hear(message)
        except CloisterError:
            pass
        self._end("an engine ended")

    async def _watch_tunnel(self, tunnel: Connection) -> None:
        with suppress(CloisterError):
            while await tunnel.receive() is not None:
                pass
        self._end("a link between parties ended")

    def _end(self, reason: str) -> None:
        if self._open:
            self._ended(reason)
