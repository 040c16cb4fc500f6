"""A handle on a real process: it starts or says why not, is heard, and ends for certain."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import psutil
import pytest

from cloister.errors import ModelNotFound, ServiceUnavailable
from cloister.messages.generation import AskStats, Cancel
from cloister.messages.lifecycle import StartFailed
from cloister.process import watchdog
from cloister.process.handle import ModuleHandle

CHILD = """
import sys, time
from cloister.messages.generation import AskStats, Cancel
from cloister.messages.lifecycle import StartFailed
from cloister.process.blocking import BlockingEndpoint
from cloister.process.hardening import begin_child

peer = BlockingEndpoint(begin_child("test"), Cancel)
while (order := peer.next()) is not None:
    match order.request_id:
        case 0: peer.send(AskStats())
        case 1: peer.send(StartFailed("model_not_found", "No such model.", "Look elsewhere."))
        case 2: sys.exit(3)
        case 3: time.sleep(600)
        case _: peer.send(order)
"""


class Owner:
    def __init__(self) -> None:
        self.heard: list[msgspec.Struct] = []
        self.ended = asyncio.Event()
        self.handle = ModuleHandle(
            "child", "child_of_a_test", SAYS, AskStats, handle=self.heard.append, on_end=self.ended.set
        )

    def order(self, number: int) -> None:
        self.handle.send(Cancel(number))


SAYS = AskStats | Cancel | StartFailed


@pytest.fixture
async def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Owner:
    (tmp_path / "child_of_a_test.py").write_text(CHILD)
    paths = (str(tmp_path), *os.environ.get("PYTHONPATH", "").split(":"))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in paths if path))
    return Owner()


async def test_it_starts_is_heard_and_ends(owner: Owner) -> None:
    owner.order(0)
    assert isinstance(await asyncio.wait_for(owner.handle.ready, 60), AskStats) and owner.handle.started
    pid = owner.handle.pid
    assert pid is not None and Path(f"/proc/{pid}/comm").read_text() == "cl-test\n"
    owner.order(7)
    while not owner.heard:
        await asyncio.sleep(0.01)
    assert owner.heard == [Cancel(7)]
    await owner.handle.close(30)
    assert not psutil.pid_exists(pid)


async def test_why_it_did_not_start_is_raised(owner: Owner) -> None:
    owner.order(1)
    with pytest.raises(ModelNotFound, match=r"No such model\. Look elsewhere\."):
        await asyncio.wait_for(owner.handle.ready, 60)
    assert not owner.handle.started
    await owner.handle.close()


async def test_one_that_ends_while_it_starts(owner: Owner) -> None:
    owner.order(2)
    with pytest.raises(ServiceUnavailable, match="child ended while it started"):
        await asyncio.wait_for(owner.handle.ready, 60)
    await asyncio.wait_for(owner.ended.wait(), 5)
    await asyncio.wait_for(owner.handle.ends(), 30)


async def test_ready_twice_breaks_the_protocol(owner: Owner) -> None:
    owner.order(0)
    owner.order(0)
    await asyncio.wait_for(owner.ended.wait(), 60)
    await owner.handle.close()


@pytest.mark.parametrize("terminate", [False, True])
async def test_one_that_does_not_listen_is_killed(owner: Owner, terminate: bool) -> None:
    owner.order(0)
    await asyncio.wait_for(owner.handle.ready, 60)
    owner.order(3)
    pid = owner.handle.pid
    await asyncio.wait_for(owner.handle.close(0.2, terminate=terminate), 60)
    assert pid is not None and not psutil.pid_exists(pid)


async def test_a_stopped_one_ends_the_line_and_is_given_no_grace(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: it would neither handle that it shall end nor end by itself."""
    monkeypatch.setattr(watchdog, "STOPPED_S", 1.0)
    owner.order(0)
    await asyncio.wait_for(owner.handle.ready, 60)
    pid = owner.handle.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await asyncio.wait_for(owner.ended.wait(), 60)
    await asyncio.wait_for(owner.handle.close(600), 60)
    assert not psutil.pid_exists(pid)


async def test_killing_one_that_is_waited_for_tells_who_waits(owner: Owner) -> None:
    owner.handle.kill(30)
    with pytest.raises(ServiceUnavailable):
        await owner.handle.ready
    assert not owner.ended.is_set()  # who kills it knows
