"""The controller's neighbours, played by the test over real sockets: a fork server, a service, vaults and a gateway."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from cloister.config import ControllerSettings
from cloister.controller.relay import Relay
from cloister.controller.service import Service
from cloister.errors import ProtocolError
from cloister.link.memory import LinkShape
from cloister.messages.controller_frontend import Ask, Serving
from cloister.messages.controller_service import AttachLink, Pause, Paused, Resume, ToSealedService
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FirstToken,
    LeaseCores,
    Prefilled,
    PromptAccepted,
    Release,
    ToVault,
    VaultReady,
    WantCores,
)
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Ready, Stats, Tokens
from cloister.messages.lifecycle import Ping, Pong
from cloister.messages.prompts import LockedPrompt, SealedPrompt
from cloister.messages.types import VERSION, SamplingParams
from cloister.process.child import Child
from cloister.process.endpoint import Endpoint

Kind = TypeVar("Kind")
VOCABULARY = 100
PARAMS = SamplingParams(max_tokens=8)
SERVING = Serving(VOCABULARY, 512, 64, 16, "fake", 2, levels=("open", "partitioned", "obfuscated", "isolated"))


class Inbox:
    """What was received, in order; waits for the next message of a kind, skipping none silently."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._arrived = asyncio.Event()

    def put(self, message: msgspec.Struct) -> None:
        self.messages.append(message)
        self._arrived.set()

    async def next(self, kind: type[Kind], *, skip: tuple[type, ...] = ()) -> Kind:
        async with asyncio.timeout(5):
            while True:
                while self.messages:
                    message = self.messages.pop(0)
                    if isinstance(message, kind):
                        return message
                    assert isinstance(message, skip), f"expected {kind.__name__}, got {message}"
                self._arrived.clear()
                await self._arrived.wait()


class Peer(Inbox):
    """The other end of a control socket."""

    def __init__(self, end: socket.socket, union: object) -> None:
        super().__init__()
        self.gone = asyncio.Event()
        self.channel = Endpoint(end, union, self.put, self.gone.set)

    def say(self, *messages: msgspec.Struct) -> None:
        for message in messages:
            self.channel.send(message)

    def die(self) -> None:
        self.channel.close()


class FakeService(Peer):
    def __init__(self, end: socket.socket) -> None:
        super().__init__(end, ToSealedService)
        self.links: list[int] = []
        self.stats = Stats(running=1, prompt_tokens=10, output_tokens=20)
        self.descriptors: list[int] = []
        self.slots: dict[int, int] = {}
        self.say(Ready(VOCABULARY, 512, 64, 16, "fake"))

    def put(self, message: msgspec.Struct) -> None:
        """Links and the cores are answered as a real service does; the rest is for the test."""
        match message:
            case AttachLink():
                self.links.append(message.link)
                if message.slot is not None:
                    self.slots[message.link] = message.slot
                    return
                for descriptor in (self.channel.take_descriptor(), self.channel.take_descriptor()):
                    self.descriptors.append(os.fstat(descriptor).st_ino)
                    os.close(descriptor)
            case Pause():
                self.say(Paused())
            case Resume():
                pass
            case AskStats():
                self.say(self.stats)
            case Ping():
                self.say(Pong())
            case _:
                super().put(message)


class FakeVault(Peer):
    def __init__(self, end: socket.socket, ready: bool = True) -> None:
        super().__init__(end, ToVault)
        if ready:
            self.say(VaultReady(VERSION))

    def put(self, message: msgspec.Struct) -> None:
        if isinstance(message, Ping):
            self.say(Pong())
        else:
            super().put(message)

    async def serve_first(self, token: int = 7, **fields: Any) -> AssignPrompt:
        """Read a prompt, work for it as agreed, and say the first token."""
        asked = await self.next(AssignPrompt)
        self.say(PromptAccepted(asked.request_id, 40), WantCores(40))
        await self.next(LeaseCores, skip=(AssignPrompt, Release, Cancel))
        public, seed = fields.pop("public", ()), fields.pop("seed", 0)
        first = FirstToken(token, slot=3, **fields)
        self.say(CoresDone(), Prefilled(asked.request_id, (first,), max_tokens=8, public=public, seed=seed))
        return asked


class FakeForkServer:
    """Forks nothing: each child is a Peer the test plays."""

    def __init__(self) -> None:
        self.vaults_are_ready = True
        self.vaults: list[FakeVault] = []
        self.services: list[FakeService] = []
        self.given: list[tuple[int, ...]] = []
        """What each vault got for its link."""

    def spawn(
        self, role: str, *descriptors: int, slots: int = 0, weights: int | None = None
    ) -> tuple[Child, socket.socket]:
        ours, theirs = socket.socketpair()
        if role == "service":
            self.services.append(FakeService(theirs))
        else:
            assert len(descriptors) == 2
            self.given.append(descriptors if weights is None else (*descriptors, weights))
            self.vaults.append(FakeVault(theirs, self.vaults_are_ready))
        return Child(), ours


def nothing_is_sealed(prompt: SealedPrompt, owner: str) -> LockedPrompt:
    raise ProtocolError("There is no sealed prompt.")


class Node:
    """A relay with a service, vaults and one gateway, all played."""

    def __init__(self, lock: Callable[[SealedPrompt, str], LockedPrompt] | None = None, **settings: Any) -> None:
        self.forkserver = FakeForkServer()
        self.relay = Relay(ControllerSettings(**settings), 1, lock or nothing_is_sealed, SERVING)
        self.relay.vaults.open(self.forkserver, LinkShape(3, 16, 2))  # type: ignore[arg-type]
        self.frontend = Inbox()
        self.gateway = self.add_gateway(self.frontend)
        self.real_service: Service | None = None

    @classmethod
    async def build(cls, lock: Callable[[SealedPrompt, str], LockedPrompt] | None = None, **settings: Any) -> Node:
        node = cls(lock, **settings)
        await node.start_service()
        return node

    def add_gateway(self, frontend: Inbox) -> int:
        class Frontend:
            def send(self, message: msgspec.Struct) -> None:
                frontend.put(message)

            send_soon = send

        return self.relay.add_frontend(Frontend())

    async def start_service(self) -> None:
        forkserver: Any = self.forkserver
        self.real_service = Service(forkserver, self.relay.from_service, self.relay.service_gone)
        await self.real_service.ready(5)
        self.relay.service_up(self.real_service)

    @property
    def service(self) -> FakeService:
        return self.forkserver.services[-1]

    async def vault(self, number: int) -> FakeVault:
        """The vault forked as the so-manieth, from 0."""
        async with asyncio.timeout(5):
            while len(self.forkserver.vaults) <= number:
                await asyncio.sleep(0.001)
        return self.forkserver.vaults[number]

    def send(self, message: msgspec.Struct) -> None:
        self.relay.from_frontend(self.gateway, message)

    def ask(self, request_id: int, session: str = "s", *, tenant: str = "ann", level: Any = "partitioned",
            keep: bool = False, group: str = "", params: SamplingParams = PARAMS) -> None:  # fmt: skip
        self.send(Ask(request_id, tenant, level, session, keep, b"prompt", params, group))

    async def failure(self, *skip: type) -> Failed:
        return await self.frontend.next(Failed, skip=(Accepted, Tokens, *skip))

    def close(self) -> None:
        self.relay.vaults.close()
        self.relay.sessions.end_all()
        if self.real_service:
            self.real_service.close()
        for peer in (*self.forkserver.vaults, *self.forkserver.services):
            peer.die()
