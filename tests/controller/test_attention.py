"""Attention processes as the controller sees them, played by the test over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from cloister.config import EngineSettings, Settings
from cloister.controller.attention import AttentionProcesses
from cloister.controller.forkserver import ForkServer as RealForkServer
from cloister.controller.link_slots import LinkSlots
from cloister.controller.process import Controller
from cloister.errors import ProtocolError
from cloister.messages.attention import AttentionReady, ClearPlace, PlaceCleared, ToAttention
from cloister.messages.generation import VERSION, Ready
from cloister.messages.lifecycle import Preloaded
from cloister.messages.service import LinkPlace
from cloister.process.child import Child
from tests.controller.fakes import Peer

Then = Callable[[], None]


class FakeAttention(Peer):
    """Lends a memory file for each place, unless it is told to lend fewer."""

    def __init__(self, end: socket.socket, places: int) -> None:
        super().__init__(end, ToAttention)
        for place in range(places):
            memory = os.memfd_create("arena")
            self.channel.send(LinkPlace(place), (memory,))
            os.close(memory)
        self.say(AttentionReady(VERSION))


class ForkServer:
    def __init__(self, missing: int = 0) -> None:
        self.processes: list[FakeAttention] = []
        self.given: list[tuple[int, int]] = []
        self._missing = missing

    def spawn(self, role: str, mailbox: int, *, places: int) -> tuple[Child, socket.socket]:
        assert role == "attention"
        ours, theirs = socket.socketpair()
        self.given.append((mailbox, places))
        self.processes.append(FakeAttention(theirs, places - self._missing))
        return Child(), ours


class Node:
    """Two of them, for five vaults; what ends is noted and ended when the test says so."""

    def __init__(self, missing: int = 0) -> None:
        self.ending: list[Then] = []
        self.ended = asyncio.Event()
        self.forkserver = ForkServer(missing)
        forkserver: Any = self.forkserver
        self.all = AttentionProcesses(forkserver, {0: 10, 1: 11}, 5, self._end, self.ended.set)

    def _end(self, child: Child, then: Then) -> None:
        self.ending.append(then)

    def close(self) -> None:
        self.all.close()
        for peer in self.forkserver.processes:
            peer.die()


async def test_places_are_spread_over_the_processes() -> None:
    node = Node()
    await node.all.ready(5)
    assert node.forkserver.given == [(10, 3), (11, 2)]
    memory = node.all.memory
    assert list(memory) == [0, 1, 2, 3, 4]
    first, second = (list(process.memory.values()) for process in node.all._all)
    assert [memory[place] for place in (0, 2, 4)] == first and [memory[place] for place in (1, 3)] == second
    node.close()
    assert not node.all.memory and len(node.ending) == 2


async def test_a_place_is_free_when_its_vault_has_ended_and_it_is_cleared() -> None:
    node = Node()
    await node.all.ready(5)
    places = LinkSlots(node.all.memory, node.all.end)
    taken = [places.take() for _ in range(5)]
    places.leave(taken[3], Child())
    node.ending.pop()()
    cleared = await node.forkserver.processes[1].next(ClearPlace)
    assert cleared == ClearPlace(1) and places.free == 0
    freed = asyncio.Event()
    places.on_free = freed.set
    node.forkserver.processes[1].say(PlaceCleared(1))
    await asyncio.wait_for(freed.wait(), 5)
    assert places.take() == taken[3]
    node.close()


def test_vaults_are_spread_evenly_over_the_processes_whoever_left() -> None:
    ended: list[Then] = []
    places = LinkSlots(dict.fromkeys(range(6), 10), lambda child, place, then: ended.append(then), groups=3)
    taken = [places.take() for _ in range(4)]
    assert taken == [0, 1, 2, 3]
    for place in (0, 3):
        places.leave(place, Child())
    for then in ended:
        then()
    assert places.take() % 3 == 0, "the first process has none, and the others one each"


async def test_one_that_lends_less_than_agreed_is_not_used() -> None:
    node = Node(missing=1)
    with pytest.raises(ProtocolError):
        await node.all.ready(5)
    node.close()


async def test_memory_that_is_lent_later_is_not_taken() -> None:
    node = Node()
    await node.all.ready(5)
    before, memory = node.all.memory, os.memfd_create("arena")
    node.forkserver.processes[0].channel.send(LinkPlace(0), (memory,))
    os.close(memory)
    await asyncio.wait_for(node.ended.wait(), 5)
    assert not set(node.all.memory.items()) - set(before.items())
    node.close()


@pytest.mark.parametrize("said", [PlaceCleared(0), AttentionReady(VERSION), None])
async def test_one_that_ends_or_speaks_out_of_turn_is_told_and_clears_nothing_more(said: msgspec.Struct | None) -> None:
    node = Node()
    await node.all.ready(5)
    peer = node.forkserver.processes[0]
    peer.die() if said is None else peer.say(said)
    await asyncio.wait_for(node.ended.wait(), 5)
    freed: list[int] = []
    node.ending.clear()
    node.all.end(Child(), 0, lambda: freed.append(0))
    node.ending.pop()()
    assert not freed
    node.close()


@pytest.mark.parametrize(
    ("meets", "processes", "wide"), [(False, 8, True), (True, 8, True), (True, 1, True), (True, 0, False)]
)
def test_prompts_are_hidden_among_others_unless_vaults_on_a_gpu_answer_themselves(
    meets: bool, processes: int, wide: bool
) -> None:
    """Such a vault exposes one prompt at a time."""
    settings = Settings(engine=EngineSettings(attention_processes=processes))
    node = SimpleNamespace(
        _preloaded=Preloaded(4, 64, 2, partitionable=True, meets=meets),
        _ready=Ready(VERSION, 300, 512, 64, 16, "cuda"),
        _external="not here",
        _unfit=frozenset(),
        _settings=settings,
    )
    serving = Controller.serving.fget(node)  # type: ignore[attr-defined]
    assert "partitioned" in serving.levels and ("obfuscated" in serving.levels) is wide


@pytest.mark.parametrize("processes", [2, 0])
async def test_vaults_get_the_services_weights_and_compute_in_turns_where_they_are_outside_mps(processes: int) -> None:
    fork: Any = ForkServer()
    engine = EngineSettings(attention_processes=processes, vaults_outside_mps=bool(processes))
    node: Any = SimpleNamespace(
        _mps=SimpleNamespace(end=lambda child, then: None),
        _settings=Settings(engine=engine),
        _attention_ended=lambda: None,
        _preloaded=Preloaded(4, 64, 2, partitionable=True, meets=True, vaults=3),
        _remote=None,
        relay=MagicMock(),
    )
    service: Any = SimpleNamespace(places={0: 10, 1: 11}, weights=12)
    await Controller._place_vaults(node, service, fork, node._preloaded)
    assert node._places.weights == 12
    Controller._open_vaults_at(node, node._places, fork)
    node.relay.core_lease.compute_beside.assert_called_once_with(in_turns=bool(processes))
    assert node.relay.vaults.open.call_args.args[2] is node._places
    if processes:
        node._attention.close()
        for peer in fork.processes:
            peer.die()


def test_what_a_child_gets_is_said_in_its_order() -> None:
    """A file for a service, weights for a vault: each has its flag, and comes last."""
    handle: Any = SimpleNamespace(send=MagicMock())
    fork: Any = SimpleNamespace(_numbers=iter(range(9)), _starting={}, _handle=handle)
    for role, given in (("service", {"disk": 30}), ("vault", {"weights": 31}), ("vault", {})):
        _, ours = RealForkServer.spawn(fork, role, 20, 21, **given)
        ours.close()
        order, descriptors = handle.send.call_args.args
        assert (order.role, order.disk, order.weights) == (role, "disk" in given, "weights" in given)
        assert descriptors[2:] == (20, 21, *given.values())
