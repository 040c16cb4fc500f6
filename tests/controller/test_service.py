"""The controller's handle on a service whose device has memory for others, played by the test over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import msgspec
import pytest

from cloister.controller.service import Service
from cloister.errors import CloisterError
from cloister.messages.controller_service import LinkSlot, ToSealedService, WeightsMemory
from cloister.messages.generation import Ready
from cloister.process.child import Child
from tests.controller.fakes import Peer

READY = Ready(32, 512, 64, 16, "fake")


class ForkServer:
    def spawn(self, role: str) -> tuple[Child, socket.socket]:
        ours, theirs = socket.socketpair()
        self.service = Peer(theirs, ToSealedService)
        return Child(), ours


def lend(peer: Peer, message: msgspec.Struct) -> None:
    memory = os.memfd_create("lent")
    peer.channel.send(message, (memory,))
    os.close(memory)


def started() -> tuple[Service, Peer, asyncio.Event]:
    forkserver, ended = ForkServer(), asyncio.Event()
    of_any_kind: Any = forkserver
    return Service(of_any_kind, lambda _: None, ended.set), forkserver.service, ended


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_the_memory_of_its_device_is_kept_until_it_ends() -> None:
    before = open_files()
    service, peer, _ = started()
    lend(peer, WeightsMemory())
    lend(peer, LinkSlot(0))
    peer.say(READY)
    await service.ready(5)
    assert service.weights is not None and list(service.slots) == [0]
    assert os.fstat(service.weights).st_ino != os.fstat(service.slots[0]).st_ino
    service.close()
    peer.die()
    await asyncio.sleep(0)
    assert service.weights is None and not service.slots and open_files() == before


@pytest.mark.parametrize("message", [WeightsMemory(), LinkSlot(0)])
async def test_what_is_lent_twice_ends_it(message: msgspec.Struct) -> None:
    service, peer, _ = started()
    lend(peer, message)
    lend(peer, message)
    with pytest.raises(CloisterError) as failure:
        await service.ready(60)
    assert "in time" not in str(failure.value)
    peer.die()


async def test_nothing_is_lent_by_one_that_is_sealed() -> None:
    service, peer, ended = started()
    peer.say(READY)
    await service.ready(5)
    lend(peer, WeightsMemory())
    await asyncio.wait_for(ended.wait(), 5)
    assert service.weights is None
    peer.die()
