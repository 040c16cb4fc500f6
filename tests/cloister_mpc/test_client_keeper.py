"""The client's keeper with real processes that only play their parts: started, asked, killed, started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloister.config import MpcSettings
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister_mpc import client_keeper as client_module
from cloister_mpc.client_keeper import MpcClientKeeper
from tests.cloister_mpc.route_alone import MpcOnly
from tests.controller.fakes import Inbox

STUB = "tests.cloister_mpc.stub_mpc_client"
PARAMS = SamplingParams(max_tokens=8)


class PendingRequest(Inbox):
    def __init__(self, name: str, path: Path, settings: MpcSettings) -> None:
        super().__init__()
        self.mpc = MpcOnly(self.put, 100)
        folder = ModelFolder(name, path, {"model_type": "llama"})
        self.keeper = MpcClientKeeper(folder, settings, self.mpc.route, vocabulary=100, max_context=512)
        self.mpc.route.client = self.keeper

    def ask(self, request_id: int, prompt: bytes = b"answer") -> None:
        self.mpc.ask(request_id, prompt, PARAMS)

    async def up(self, not_pid: int | None = None) -> int:
        async with asyncio.timeout(20):
            while (pid := self.keeper.client_pid) in (None, not_pid):
                await asyncio.sleep(0.02)
        assert pid is not None
        return pid


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client_module, "CLIENT", STUB)
    monkeypatch.setattr(client_module, "LOCAL_PARTIES", STUB)
    monkeypatch.setattr("cloister.process.supervisor.BACK_OFF_S", (0.05,))
    monkeypatch.setattr(client_module, "cache_folder", lambda: tmp_path)


def shares(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "mpc").glob("serve-*"))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[PendingRequest] = []

    def make(name: str = "model", **settings: Any) -> PendingRequest:
        made.append(PendingRequest(name, tmp_path, MpcSettings(mode="local", **settings)))
        return made[0]

    yield make
    for client in made:
        await client.keeper.close()


async def test_the_first_request_starts_it_and_is_told_when_to_come_back(node: Any, tmp_path: Path) -> None:
    client = node()
    assert not shares(tmp_path)  # nothing runs before somebody asks
    client.ask(1)
    failure = await client.next(Failed)
    assert failure.code == "starting_up" and failure.retry_after > 1
    await client.up()
    client.ask(2)
    assert await client.next(Accepted) == Accepted(2, 1)
    assert await client.next(Tokens) == Tokens(2, (1,), finish="stop")
    await client.keeper.close()
    assert not shares(tmp_path)  # all shares together are the weights


async def test_shares_are_gone_before_the_parties_are_waited_for(node: Any, tmp_path: Path) -> None:
    """A server that is told to stop has two seconds, and busy parties take longer."""
    client = node()
    client.keeper.start()
    await client.up()
    parties = client.keeper._local_parties.pid
    os.kill(parties, signal.SIGSTOP)
    closing = asyncio.create_task(client.keeper.close())
    (place,) = shares(tmp_path)
    async with asyncio.timeout(20):
        while (place / "parties.toml").exists():
            await asyncio.sleep(0.01)
    assert not closing.done()
    os.kill(parties, signal.SIGCONT)
    await closing
    assert not place.exists()


@pytest.mark.parametrize("how", ["killed", "dies", "lies"])
async def test_a_client_that_ends_fails_its_requests_at_once_and_comes_back(node: Any, how: str) -> None:
    client = node()
    client.keeper.start()
    pid = await client.up()
    client.ask(1, b"keep")
    match how:
        case "killed":
            os.kill(pid, signal.SIGKILL)
        case "dies":
            client.ask(2, b"die")
        case "lies":
            client.ask(2, b"lie")
    failure = await client.next(Failed)
    assert (failure.request_id, failure.code) == (1, "vault_lost")
    client.messages.clear()
    assert await client.up(not_pid=pid) != pid
    client.ask(3)
    assert (await client.next(Accepted, skip=(Failed,))).request_id == 3


async def test_dead_parties_are_started_again_with_a_client_of_its_own(node: Any, tmp_path: Path) -> None:
    client = node()
    client.keeper.start()
    pid = await client.up()
    assert client.keeper._local_parties is not None
    started = client.keeper._local_parties.pid
    os.kill(started, signal.SIGKILL)
    await client.up(not_pid=pid)
    (place,) = shares(tmp_path)
    assert client.keeper._local_parties.pid != started and (place / "parties.toml").exists()


async def test_what_does_not_start_says_why(node: Any) -> None:
    client = node("broken")
    client.ask(1)
    assert (await client.next(Failed)).code == "starting_up"
    async with asyncio.timeout(20):
        while True:
            client.ask(2)
            failure = await client.next(Failed)
            if failure.code != "starting_up":
                break
            await asyncio.sleep(0.02)
    assert failure.code == "service_unavailable"
    assert "This model cannot be dealt." in failure.message and "Choose another." in failure.message


async def test_parties_elsewhere_need_no_local_parties(node: Any, tmp_path: Path) -> None:
    file = tmp_path / "parties.toml"
    file.write_text("")
    client = node(parties=file)
    client.keeper.start()
    await client.up()
    assert client.keeper._local_parties is None
