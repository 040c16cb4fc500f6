"""The clerk's keeper with real processes that only play their parts: started, asked, killed, started again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cloister.config import MpcSettings
from cloister.controller import clerk as clerk_module
from cloister.controller.clerk import ClerkKeeper
from cloister.messages.generation import Accepted, Failed, SamplingParams, Tokens
from cloister.models.source import ModelFolder
from tests.controller.fakes import Inbox, MpcOnly

STUB = "tests.controller.stub_clerk"
PARAMS = SamplingParams(max_tokens=8)


class Desk(Inbox):
    def __init__(self, name: str, path: Path, settings: MpcSettings) -> None:
        super().__init__()
        self.mpc = MpcOnly(self.put, 100)
        folder = ModelFolder(name, path, {"model_type": "llama"})
        self.keeper = ClerkKeeper(folder, settings, self.mpc.route, vocabulary=100, max_context=512)
        self.mpc.route.open(self.keeper)

    def ask(self, request_id: int, prompt: bytes = b"answer") -> None:
        self.mpc.ask(request_id, prompt, PARAMS)

    async def up(self, not_pid: int | None = None) -> int:
        async with asyncio.timeout(20):
            while (pid := self.keeper.clerk_pid) in (None, not_pid):
                await asyncio.sleep(0.02)
        assert pid is not None
        return pid


@pytest.fixture(autouse=True)
def stubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clerk_module, "CLERK", STUB)
    monkeypatch.setattr(clerk_module, "TRIO", STUB)
    monkeypatch.setattr(clerk_module, "SECONDS_BETWEEN_STARTS", (0.05,))
    monkeypatch.setattr(clerk_module, "cache_folder", lambda: tmp_path)


def shares(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "mpc").glob("serve-*"))


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Any]:
    made: list[Desk] = []

    def make(name: str = "model", **settings: Any) -> Desk:
        made.append(Desk(name, tmp_path, MpcSettings(mode="local", **settings)))
        return made[0]

    yield make
    for desk in made:
        await desk.keeper.close()


async def test_the_first_request_starts_it_and_is_told_when_to_come_back(house: Any, tmp_path: Path) -> None:
    desk = house()
    assert not shares(tmp_path)  # nothing runs before somebody asks
    desk.ask(1)
    failure = await desk.next(Failed)
    assert failure.code == "starting_up" and failure.retry_after > 1
    await desk.up()
    desk.ask(2)
    assert await desk.next(Accepted) == Accepted(2, 1)
    assert await desk.next(Tokens) == Tokens(2, (1,), finish="stop")
    await desk.keeper.close()
    assert not shares(tmp_path)  # all shares together are the weights


@pytest.mark.parametrize("how", ["killed", "dies", "lies"])
async def test_a_clerk_that_ends_fails_its_requests_at_once_and_comes_back(house: Any, how: str) -> None:
    desk = house()
    desk.keeper.start()
    pid = await desk.up()
    desk.ask(1, b"keep")
    match how:
        case "killed":
            os.kill(pid, signal.SIGKILL)
        case "dies":
            desk.ask(2, b"die")
        case "lies":
            desk.ask(2, b"lie")
    failure = await desk.next(Failed)
    assert (failure.request_id, failure.code) == (1, "vault_lost")
    desk.messages.clear()
    assert await desk.up(not_pid=pid) != pid
    desk.ask(3)
    assert (await desk.next(Accepted, skip=(Failed,))).request_id == 3


async def test_a_dead_trio_is_started_again_with_a_clerk_of_its_own(house: Any, tmp_path: Path) -> None:
    desk = house()
    desk.keeper.start()
    pid = await desk.up()
    assert desk.keeper._trio is not None
    trio = desk.keeper._trio.pid
    os.kill(trio, signal.SIGKILL)
    await desk.up(not_pid=pid)
    (place,) = shares(tmp_path)
    assert desk.keeper._trio.pid != trio and (place / "parties.toml").exists()


async def test_what_does_not_start_says_why(house: Any) -> None:
    desk = house("broken")
    desk.ask(1)
    assert (await desk.next(Failed)).code == "starting_up"
    async with asyncio.timeout(20):
        while True:
            desk.ask(2)
            failure = await desk.next(Failed)
            if failure.code != "starting_up":
                break
            await asyncio.sleep(0.02)
    assert failure.code == "service_unavailable"
    assert "This model cannot be dealt." in failure.message and "Choose another." in failure.message


async def test_parties_elsewhere_need_no_trio(house: Any, tmp_path: Path) -> None:
    file = tmp_path / "parties.toml"
    file.write_text("")
    desk = house(parties=file)
    desk.keeper.start()
    await desk.up()
    assert desk.keeper._trio is None
