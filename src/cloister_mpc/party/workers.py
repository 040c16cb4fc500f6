"""An epoch's engine and tunnel as their party sees them: started together, ended together."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from cloister.errors import CloisterError, PartyLost
from cloister.process.child import StartedChild, start_module
from cloister_mpc.config import PartiesConfig
from cloister_mpc.connection import Connection
from cloister_mpc.messages import Established, FromEngine, FromTunnel, Listening, Load, Loaded, StartEngine, StartTunnel

SECONDS_TO_END = 60.0  # a process that was killed takes milliseconds, or as long as freeing its memory does

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


class Workers:
    """`handle` gets what the engine says once `start` is over; `ended` is called once, unless we end it."""

    engine: Connection
    tunnel: Connection

    def __init__(
        self, config: PartiesConfig, rank: int, handle: Callable[[msgspec.Struct], None], ended: Callable[[str], None]
    ) -> None:
        self._config = config
        self._rank = rank
        self._handle = handle
        self._ended = ended
        self._folder = Path(tempfile.mkdtemp(prefix="cloister-party-"))
        self._children: list[StartedChild] = []
        self._connections: list[Connection] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._open = True

    async def start(self, key: bytes, load: Load) -> None:
        settings = msgspec.json.encode(self._config)
        self.engine = await self._spawn("cloister_mpc.party.engine", FromEngine)
        self.tunnel = await self._spawn("cloister_mpc.party.tunnel", FromTunnel)
        await self.engine.send(StartEngine(settings, self._rank, str(self._folder)))
        await self.tunnel.send(StartTunnel(settings, self._rank, str(self._folder), key))
        await self._expect(self.tunnel, Listening)
        await self._expect(self.engine, Listening)
        tunnel = self._listen(self.tunnel, lambda _: None, "a link between parties ended")
        self._tasks.append(asyncio.create_task(tunnel))
        await self.engine.send(load)
        await self._expect(self.engine, Loaded)
        await self.tunnel.send(Established())
        self._tasks.append(asyncio.create_task(self._listen(self.engine, self._handle, "an engine ended")))

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        for task in self._tasks:
            task.cancel()
        for child in self._children:
            child.kill(SECONDS_TO_END)
        for connection in self._connections:
            connection.abort()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _spawn(self, module: str, union: object) -> Connection:
        child, ours = start_module(module, wiping=False, **_ONE_THREAD)  # shares alone
        self._children.append(child)
        connection = Connection(*await asyncio.open_connection(sock=ours), union)
        self._connections.append(connection)
        return connection

    async def _expect(self, connection: Connection, kind: type[msgspec.Struct]) -> None:
        message = await connection.receive(self._config.limits.start_s)
        if not isinstance(message, kind):
            raise PartyLost("A process of this party did not start.", hint="Its log says more.")

    async def _listen(self, worker: Connection, handle: Callable[[msgspec.Struct], None], ended: str) -> None:
        with suppress(CloisterError):
            while (message := await worker.receive()) is not None:
                handle(message)
        if self._open:
            self._ended(ended)
