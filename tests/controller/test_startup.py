"""The controller's start and end around the code that its node runs, with stand-ins for all that is started."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cloister.config import Settings
from cloister.controller import __main__ as entry
from cloister.controller import startup
from cloister.errors import ServiceUnavailable
from cloister.messages.cli_controller import StartController

START = StartController(Settings().model_dump_json(), "model", "/nowhere", 0.0)


class Loaded:
    """In the place of `Code`."""

    def __init__(self, *groups: tuple[str, ...]) -> None:
        self.closed, self.gone = asyncio.Event(), asyncio.Event()

    async def lost(self) -> None:
        await self.gone.wait()
        raise ServiceUnavailable("The code is gone.")

    async def close(self) -> None:
        self.closed.set()


class Part:
    """Controller, gateway and sealed API at once. Where it `loads`, its start ends only with the code it came from."""

    code: Loaded
    loads = False

    def __init__(self, *_: Any) -> None:
        self.relay = SimpleNamespace(
            admit=lambda keys: None, vaults=SimpleNamespace(trouble=None), serving=lambda: None
        )
        self.evidence_maker, self.notes = SimpleNamespace(tee="none"), ()

    async def start(self) -> None:
        parts["begun"].set()
        if Part.loads:
            try:
                await asyncio.Event().wait()
            finally:
                await Part.code.closed.wait()

    async def open(self, serving: object) -> None: ...

    def admit(self, keys: object) -> None: ...

    async def serve(self, serving: object) -> str:
        parts["up"].set()
        return "http://127.0.0.1:1"

    async def close(self) -> None:
        parts["ended"].append(self)


parts: dict[str, Any] = {}


@pytest.fixture
async def node(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SimpleNamespace]:
    parts.update(begun=asyncio.Event(), up=asyncio.Event(), ended=[])
    monkeypatch.setattr(Part, "loads", False)
    for name in ("Controller", "Gateway", "SealedApi"):
        monkeypatch.setattr(startup, name, Part)
    admission = SimpleNamespace(keys=(), watch=lambda *_: None)
    monkeypatch.setattr(startup, "Admission", lambda settings: admission)
    monkeypatch.setattr(startup, "say_ready", lambda *_: None)
    monkeypatch.setattr(startup, "say_where_vaults_live", lambda *_: None)
    stop, Part.code = asyncio.Event(), Loaded()
    stopped = asyncio.create_task(stop.wait())
    handler = asyncio.get_running_loop().get_exception_handler()
    console = Console(quiet=True)
    yield SimpleNamespace(stop=stop, stopped=stopped, console=console, code=Part.code)
    stopped.cancel()
    asyncio.get_running_loop().set_exception_handler(handler)


async def test_a_node_whose_code_is_lost_ends_in_order(node: SimpleNamespace) -> None:
    serving = asyncio.create_task(startup.serve(START, node.code, node.console, node.stopped))
    async with asyncio.timeout(30):
        await parts["up"].wait()
        node.code.gone.set()
        with pytest.raises(ServiceUnavailable, match="The code is gone"):
            await serving
    assert len(parts["ended"]) == 3


async def test_who_still_loads_is_ended_with_its_code_when_the_node_is_told_to_stop(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Part, "loads", True)
    serving = asyncio.create_task(startup.serve(START, node.code, node.console, node.stopped))
    async with asyncio.timeout(30):
        await parts["begun"].wait()
        node.stop.set()
        await serving
    assert len(parts["ended"]) == 3 and not parts["up"].is_set()


async def test_it_hears_that_it_is_to_stop_while_it_is_being_imported(
    node: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing, imported = threading.Event(), threading.Event()

    def slow(name: str) -> object:
        importing.set()
        imported.wait(60)
        return importlib.import_module(name)

    monkeypatch.setattr(entry, "import_module", slow)
    monkeypatch.setattr(entry, "Code", lambda *_: node.code)
    serving = asyncio.create_task(entry._serve(START, node.console, node.stopped))
    try:
        async with asyncio.timeout(30):
            while not importing.is_set():
                await asyncio.sleep(0)
            node.stop.set()
            await serving
    finally:
        imported.set()
    assert node.code.closed.is_set() and not parts["begun"].is_set()
