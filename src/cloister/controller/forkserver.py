"""The handle on the fork server. No user's data reaches it; when it ends, all that it forked end too."""

import itertools
import os
import socket
from collections.abc import Callable

import msgspec

from cloister.config import EngineSettings
from cloister.errors import CloisterError, ProtocolError, SetupError
from cloister.link.memory import LinkShape
from cloister.messages.controller_forkserver import FromForkServer, Preload, Preloaded, Spawn, Spawned
from cloister.messages.controller_packer import FromPacker, Start, WeightsPacked
from cloister.models.memory_file import check_sealed, create_memory_file, reopen_read_only, seal
from cloister.models.source import ModelFolder
from cloister.placement import Role
from cloister.process.child import Child
from cloister.process.handle import ModuleHandle

GOODBYE_S = 5.0


def link_shape(facts: Preloaded) -> LinkShape:
    return LinkShape(facts.heads, facts.dim, facts.layers)


class ForkServer:
    def __init__(self, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._closing = False
        self._numbers = itertools.count(1)
        self._starting: dict[int, Child] = {}
        module, receive, ended = "cloister.forkserver", self._receive, self._ended
        self._handle = ModuleHandle("fork server", module, FromForkServer, Preloaded, handle=receive, on_end=ended)

    @property
    def up(self) -> bool:
        return self._handle.started and not self._closing

    async def preload(
        self, folder: ModelFolder, settings: EngineSettings, weights: int, *, allow_degraded: bool, meeting: str = ""
    ) -> Preloaded:
        engine = settings.model_dump_json().encode()
        order = Preload(folder.name, str(folder.path), engine, allow_degraded, meeting)
        self._handle.send(order, (weights,))
        return await self._handle.ready

    def spawn(
        self, role: Role, *descriptors: int, slots: int = 0, weights: int | None = None
    ) -> tuple[Child, socket.socket]:
        """Also our end of its socket. `weights`: the device's memory with them."""
        number, child = next(self._numbers), Child()
        self._starting[number] = child
        ours, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b", buffering=0) as null:
            more = () if weights is None else (weights,)
            given = (theirs.fileno(), null.fileno(), *descriptors, *more)
            self._handle.send(Spawn(number, role, slots, weights is not None), given)
        return child, ours

    def kill(self) -> None:
        """`on_end` is not called."""
        self._closing = True
        self._handle.kill(GOODBYE_S)

    async def close(self) -> None:
        """Its children end too: its pid namespace ends when the last process in it has ended."""
        self._closing = True
        await self._handle.close(GOODBYE_S)

    def _receive(self, message: msgspec.Struct) -> None:
        if not isinstance(message, Spawned) or message.child not in self._starting:
            raise ProtocolError("The fork server sent a message out of turn.")
        self._starting.pop(message.child).born(self._handle.endpoint.take_descriptor())

    def _ended(self) -> None:
        if not self._closing:
            started = self._handle.started
            self._handle.kill(GOODBYE_S)
            if started:
                self._on_end()


PACKER = "cloister.models.pack_weights"


async def seal_weights(folder: ModelFolder, settings: EngineSettings) -> int:
    writable = create_memory_file("cloister-weights")
    try:
        await _pack(folder, settings, writable)
        seal(writable)
        fd = reopen_read_only(writable)
    finally:
        os.close(writable)
    check_sealed(fd)
    return fd


async def _pack(folder: ModelFolder, settings: EngineSettings, fd: int) -> None:
    packer = ModuleHandle("packer", PACKER, FromPacker, WeightsPacked, lost=_lost())
    try:
        packer.send(Start(folder.name, str(folder.path), settings.model_dump_json().encode()), (fd,))
        packed = await packer.ready
    finally:
        packer.kill()  # also when cancelled: no packer stays behind with a writable descriptor
        await packer.ends()
    if os.fstat(fd).st_size != packed.length:
        raise _lost()


def _lost() -> CloisterError:
    return SetupError(
        "The process that packs the weights ended before it was done.",
        hint="Perhaps memory ran out: the weights must fit into it once.",
    )
