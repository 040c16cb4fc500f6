"""A real controller with a small model, in the test's own process; the gateway's place is taken by the test."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from cloister.backend.base import VaultJob
from cloister.backend.client import ControllerClient
from cloister.config import ControllerSettings, EngineSettings, Settings
from cloister.controller.process import Controller
from cloister.messages.controller_gateway import FromGateway
from cloister.messages.prompts import TextPrompt, write_prompt
from cloister.models.source import ModelFolder
from cloister.process.endpoint import Endpoint
from tests.forked import fork_from_template, start_afresh
from tests.forkserver.packed import sealed_once

ENGINE = EngineSettings(dtype="fp32", threads=1, kv_cache_mib=4, vault_kv_mib=4, chunk_tokens=64, link_deadline_ms=1000)


class RealNode:
    """`client` is what a gateway would have."""

    def __init__(self, controller: Controller, client: ControllerClient) -> None:
        self.controller = controller
        self.client = client

    @classmethod
    async def start(
        cls, folder: ModelFolder, engine: EngineSettings = ENGINE, *, afresh: bool = False, **settings: Any
    ) -> RealNode:
        """The first on a model has its weights packed; those after it are given them. `afresh`: not from a template."""
        start_afresh() if afresh else fork_from_template()
        controller = Controller(folder, Settings(engine=engine, controller=ControllerSettings(**settings)))
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("cloister.controller.compute_processes.seal_weights", sealed_once)
                serving = await controller.start()
        except BaseException:
            await controller.close()
            start_afresh()
            raise
        ours, theirs = socket.socketpair()
        channel = Endpoint(ours, FromGateway, lambda message: controller.relay.from_frontend(number, message), _nothing)
        number = controller.relay.add_frontend(channel)
        client = await ControllerClient.connect(theirs)
        channel.send(serving)
        await client.serving
        return cls(controller, client)

    async def close(self) -> None:
        await self.client.close()
        await self.controller.close()
        start_afresh()


def private(text: str, session: str, *, keep: bool = False, level: Any = "partitioned") -> VaultJob:
    return VaultJob(level, session, keep, write_prompt(TextPrompt(text)))


def _nothing() -> None:
    pass
