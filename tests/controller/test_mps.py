"""MPS is started, watched and asked to end clients; and a slot is free when its vault has ended. With a daemon that is
a script, and clients that are plain processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cloister.config import ControllerSettings, EngineSettings, Settings
from cloister.controller import mps
from cloister.controller.attention import LinkSlots
from cloister.controller.mps import Mps, mps_for
from cloister.errors import ServiceUnavailable, SetupError
from cloister.process.child import Child

DAEMON = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 3
if [ "$1" = -f ]; then touch control; exec sleep 60; fi
mkdir busy 2>/dev/null || exit 1
read -r order
echo "$order" >> orders
sleep 0.05
if [ "$order" = get_server_list ]; then echo 77; else echo 0; fi
rmdir busy
"""


@pytest.fixture
def daemon(tmp_path: Path) -> str:
    path = tmp_path / "daemon"
    path.write_text(DAEMON)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
async def running(daemon: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Mps]:
    monkeypatch.setattr(mps, "GRACE_S", 0.2)
    made = Mps(daemon)
    await made.start(lambda: None)
    yield made
    await made.close()
    assert not Path(made.folder).exists()


Client = tuple[Child, subprocess.Popen[bytes]]


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    """They end when they are hung up on."""
    command = ["sh", "-c", "read line"]
    made = [subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
    children = [Child() for _ in made]
    for child, process in zip(children, made, strict=True):
        child.born(os.pidfd_open(process.pid))
    yield list(zip(children, made, strict=True))
    for process in made:
        process.kill()
        process.wait()


@pytest.fixture
def client(clients: list[Client]) -> Client:
    return clients[0]


def orders(made: Mps) -> list[str]:
    path = Path(made.folder) / "orders"
    return path.read_text().splitlines() if path.exists() else []


async def test_a_client_that_ends_when_it_is_hung_up_on_is_not_terminated(running: Mps, client: Client) -> None:
    child, process = client
    ended: list[bool] = []
    running.end(child, lambda: ended.append(child.ended))
    assert process.stdin is not None
    process.stdin.close()
    await running.ended()
    assert ended == [True] and orders(running) == []


async def test_a_client_that_does_not_end_is_terminated_by_mps_before_it_is_killed(
    running: Mps, client: Client
) -> None:
    child, process = client
    running.end(child, lambda: None)
    await running.ended()
    assert orders(running) == ["get_server_list", f"terminate_client 77 {process.pid}"]
    assert process.wait(5) == -signal.SIGKILL


async def test_none_of_many_that_do_not_end_at_once_is_killed_before_mps_has_terminated_it(
    running: Mps, clients: list[Client]
) -> None:
    """The daemon listens to one at a time, as NVIDIA's does."""
    terminated: dict[int, bool] = {}
    for child, process in clients:

        def note(pid: int = process.pid) -> None:
            terminated[pid] = f"terminate_client 77 {pid}" in orders(running)

        running.end(child, note)
    await running.ended()
    assert terminated == {process.pid: True for _, process in clients}


async def test_an_order_that_the_daemon_drops_is_given_again(running: Mps, client: Client) -> None:
    busy = Path(running.folder) / "busy"
    busy.mkdir()
    asyncio.get_running_loop().call_later(0.3, busy.rmdir)
    running.end(client[0], lambda: None)
    await running.ended()
    assert orders(running)[-1] == f"terminate_client 77 {client[1].pid}"


async def test_its_end_is_told_and_it_can_be_started_again_in_the_same_folder(daemon: str) -> None:
    made, told = Mps(daemon), asyncio.Event()
    await made.start(told.set)
    assert made._daemon is not None
    folder, first = made.folder, made._daemon.pid
    os.kill(first, signal.SIGKILL)
    await asyncio.wait_for(told.wait(), 5)
    assert not made.running
    await made.start(lambda: None)
    assert made.running and made.folder == folder and made._daemon.pid != first
    await made.close()


async def test_one_that_does_not_start_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "daemon"
    path.write_text("#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    made = Mps(str(path))
    with pytest.raises(SetupError, match="MPS"):
        await made.start(lambda: None)
    await made.close()


def test_without_a_gpu_or_for_the_cpu_there_is_none(monkeypatch: pytest.MonkeyPatch, daemon: str) -> None:
    monkeypatch.setattr(mps, "DAEMON", daemon)
    monkeypatch.setattr(mps, "DEVICE", "/nowhere")
    assert mps_for(Settings()) is None
    monkeypatch.setattr(mps, "DEVICE", "/dev/null")
    for engine in (EngineSettings(kernels="native"), EngineSettings(dtype="fp32")):
        assert mps_for(Settings(engine=engine)) is None
    assert mps_for(Settings(controller=ControllerSettings(gpu_in_turns=True))) is None
    for none in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert mps_for(Settings()) is None, "no GPU is to be seen"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = mps_for(Settings())
    assert found is not None
    os.rmdir(found.folder)


def test_a_place_is_free_when_its_vault_has_ended_and_not_before() -> None:
    ending = []
    slots = LinkSlots({0: 10, 1: 11}, lambda child, slot, then: ending.append(then))
    first, second = slots.take(), slots.take()
    assert {first, second} == {0, 1} and slots.descriptors(first) == (10 + first, 10 + first)
    with pytest.raises(ServiceUnavailable):
        slots.take()
    slots.release(first, Child())
    assert slots.free == 0
    ending.pop()()
    assert slots.take() == first
