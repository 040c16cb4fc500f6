"""A controller of few words: starts a fork server, has children forked, speaks with them over their sockets."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
from typing import IO

from cloister.config import EngineSettings
from cloister.link.memory import LinkMemory, LinkShape
from cloister.messages.controller_forkserver import FromForkServer, Preload, Preloaded, Spawn, Spawned
from cloister.messages.controller_service import FromSealedService
from cloister.messages.controller_vault import FromVault
from cloister.models.source import ModelFolder
from tests.forked import forking
from tests.forkserver.line import PATIENCE_S, Line
from tests.forkserver.packed import sealed_once


class Child:
    """A forked child: its line, its pidfd and, for a vault, its link."""

    def __init__(self, line: Line, pidfd: int, link: LinkMemory | None) -> None:
        self.line = line
        self.pidfd = pidfd
        self.link = link

    @property
    def pid(self) -> int:
        """Its id among all processes of the machine: the fork server knows another."""
        with open(f"/proc/self/fdinfo/{self.pidfd}") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))

    def ended(self, patience_s: float = PATIENCE_S) -> bool:
        return bool(select.select([self.pidfd], [], [], patience_s)[0])

    def kill(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Controller:
    """Starts a fork server; `close` ends it and all that came of it."""

    def __init__(
        self,
        folder: ModelFolder,
        settings: EngineSettings,
        weights_of: ModelFolder | None = None,
        packed_with: EngineSettings | None = None,
        module: str = "cloister.forkserver",
        output: IO[bytes] | None = None,
    ) -> None:
        with forking():
            weights = asyncio.run(sealed_once(weights_of or folder, packed_with or settings))
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", module, str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.line = Line(ours, FromForkServer)
        order = Preload(folder.name, str(folder.path), settings.model_dump_json().encode())
        self.line.send(order, descriptors=(weights,))
        os.close(weights)
        self.preloaded = self.line.handle()
        self._numbers = iter(range(1, 1 << 30))
        self.children: list[Child] = []

    def spawn(self, role: str, weights: int | None = None) -> Child:
        number = next(self._numbers)
        ours, theirs = socket.socketpair()
        link = LinkMemory(self.shape) if role == "vault" else None
        with theirs, open(os.devnull, "r+b", buffering=0) as null:
            descriptors = (theirs.fileno(), null.fileno(), *(link.vault_descriptors if link else ()))
            descriptors += () if weights is None else (weights,)
            self.line.send(Spawn(number, role, weights=weights is not None), descriptors=descriptors)
        born = self.line.handle()
        assert isinstance(born, Spawned) and born.child == number
        line = Line(ours, FromVault if role == "vault" else FromSealedService)
        child = Child(line, self.line.descriptors.popleft(), link)
        self.children.append(child)
        return child

    @property
    def shape(self) -> LinkShape:
        assert isinstance(self.preloaded, Preloaded), self.preloaded
        return LinkShape(self.preloaded.heads, self.preloaded.dim, self.preloaded.layers)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.line.socket.close()
        for child in self.children:
            assert child.ended()
            child.line.socket.close()
            os.close(child.pidfd)
            if child.link:
                child.link.close()
