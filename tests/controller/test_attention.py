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

from cloister.config import Settings
from cloister.controller.attention import AttentionProcesses, LinkSlots
from cloister.controller.compute_processes import ComputeProcesses
from cloister.controller.forkserver import ForkServer as RealForkServer
from cloister.controller.offer import Offer
from cloister.errors import ProtocolError
from cloister.messages.controller_attention import AttentionReady, ClearSlot, SlotCleared, ToAttention
from cloister.messages.controller_forkserver import Preloaded
from cloister.messages.controller_service import LinkSlot
from cloister.messages.generation import Ready
from cloister.placement import Placement
from cloister.process.child import Child
from tests.controller.fakes import Peer

Then = Callable[[], None]


class FakeAttention(Peer):
    """Lends a memory file for each slot, unless it is told to lend fewer."""

    def __init__(self, end: socket.socket, slots: int) -> None:
        super().__init__(end, ToAttention)
        for slot in range(slots):
            memory = os.memfd_create("arena")
            self.channel.send(LinkSlot(slot), (memory,))
            os.close(memory)
        self.say(AttentionReady())


class ForkServer:
    def __init__(self, missing: int = 0) -> None:
        self.processes: list[FakeAttention] = []
        self.given: list[tuple[int, int]] = []
        self._missing = missing

    def spawn(self, role: str, mailbox: int, *, slots: int) -> tuple[Child, socket.socket]:
        assert role == "attention"
        ours, theirs = socket.socketpair()
        self.given.append((mailbox, slots))
        self.processes.append(FakeAttention(theirs, slots - self._missing))
        return Child(), ours


class Node:
    """Two of them, for five vaults; what ends is noted and ended when the test says so."""

    def __init__(self, missing: int = 0) -> None:
        self.ending: list[Then] = []
        self.ended = asyncio.Event()
        self.forkserver = ForkServer(missing)
        forkserver: Any = self.forkserver
        service: Any = SimpleNamespace(slots={0: 10, 1: 11}, weights=12)
        self.all = AttentionProcesses(forkserver, service, Placement(2, 5), self._end, self.ended.set)

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
    assert [memory[slot] for slot in (0, 2, 4)] == first and [memory[slot] for slot in (1, 3)] == second
    node.close()
    assert not node.all.memory and len(node.ending) == 2


async def test_a_place_is_free_when_its_vault_has_ended_and_it_is_cleared() -> None:
    node = Node()
    await node.all.ready(5)
    slots = node.all.link_slots()
    taken = [slots.take() for _ in range(5)]
    slots.release(taken[3], Child())
    node.ending.pop()()
    cleared = await node.forkserver.processes[1].next(ClearSlot)
    assert cleared == ClearSlot(1) and slots.free == 0
    freed = asyncio.Event()
    slots.on_free = freed.set
    node.forkserver.processes[1].say(SlotCleared(1))
    await asyncio.wait_for(freed.wait(), 5)
    assert slots.take() == taken[3]
    node.close()


def test_vaults_are_spread_evenly_over_the_processes_whoever_left() -> None:
    ended: list[Then] = []
    slots = LinkSlots(dict.fromkeys(range(6), 10), lambda child, slot, then: ended.append(then), groups=3)
    taken = [slots.take() for _ in range(4)]
    assert taken == [0, 1, 2, 3]
    for slot in (0, 3):
        slots.release(slot, Child())
    for then in ended:
        then()
    assert slots.take() % 3 == 0, "the first process has none, and the others one each"


async def test_one_that_lends_less_than_agreed_is_not_used() -> None:
    node = Node(missing=1)
    with pytest.raises(ProtocolError):
        await node.all.ready(5)
    node.close()


async def test_memory_that_is_lent_later_is_not_taken() -> None:
    node = Node()
    await node.all.ready(5)
    before, memory = node.all.memory, os.memfd_create("arena")
    node.forkserver.processes[0].channel.send(LinkSlot(0), (memory,))
    os.close(memory)
    await asyncio.wait_for(node.ended.wait(), 5)
    assert not set(node.all.memory.items()) - set(before.items())
    node.close()


@pytest.mark.parametrize("said", [SlotCleared(0), AttentionReady(), None])
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


@pytest.mark.parametrize("placement", [Placement(), Placement.on_mps(1), Placement.on_mps(8)])
def test_prompts_are_hidden_among_others_wherever_they_are_partitioned(placement: Placement) -> None:
    compute: Any = SimpleNamespace(
        preloaded=Preloaded(4, 64, 2, partitionable=True, placement=placement),
        ready=Ready(300, 512, 64, 16, "cuda"),
    )
    relay = MagicMock()
    Offer(Settings(), relay, compute, "not here").service_up()
    assert {"partitioned", "obfuscated"} <= set(relay.offered.levels)


async def test_vaults_get_the_services_weights_and_compute_beside_it() -> None:
    node = Node()
    await node.all.ready(5)
    slots, compute = node.all.link_slots(), MagicMock()
    assert slots.weights == 12 and slots.free == 5
    compute.preloaded = Preloaded(4, 64, 2, partitionable=True, placement=Placement(2, 5))
    ComputeProcesses._open_vaults(compute, slots, MagicMock())
    compute._relay.compute_beside.assert_called_once_with()
    assert compute._relay.vaults.open.call_args.args[2] is slots
    node.close()


async def test_a_service_that_made_too_few_mailboxes_is_not_used() -> None:
    service: Any = SimpleNamespace(slots={0: 10}, weights=12)
    with pytest.raises(ProtocolError, match="mailboxes"):
        AttentionProcesses(MagicMock(), service, Placement(2, 5), MagicMock(), MagicMock())


def test_what_a_child_gets_is_said_in_its_order() -> None:
    """A vault's weights have their flag, and come last."""
    handle: Any = SimpleNamespace(send=MagicMock())
    fork: Any = SimpleNamespace(_numbers=iter(range(9)), _starting={}, _handle=handle)
    for role, given in (("service", {}), ("vault", {"weights": 31}), ("vault", {})):
        _, ours = RealForkServer.spawn(fork, role, 20, 21, **given)
        ours.close()
        order, descriptors = handle.send.call_args.args
        assert (order.role, order.weights) == (role, "weights" in given)
        assert descriptors[2:] == (20, 21, *given.values())
