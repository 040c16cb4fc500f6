"""Fresh vaults in waiting, and vaults that do not come up or do not give the cores back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cloister.controller.attention import LinkSlots
from cloister.controller.vaults import MOST_MADE_AT_ONCE
from cloister.link.memory import LinkShape
from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    LeaseCores,
    PromptAccepted,
    VaultReady,
    WantCores,
)
from cloister.messages.generation import Accepted, AskStats, Cancel, Stats, Tokens
from cloister.messages.types import VERSION
from cloister.process.child import Child
from tests.controller.fakes import PARAMS, Node


async def test_spare_vaults_are_taken_in_turn_and_replaced() -> None:
    node = await Node.build(spare_vaults=2)
    assert len(node.forkserver.vaults) == 2 and len(node.relay.sessions) == 0
    node.ask(1, "a")
    assert await node.forkserver.vaults[0].next(AssignPrompt)
    await node.vault(2)
    node.ask(2, "b")
    assert await node.forkserver.vaults[1].next(AssignPrompt)
    assert not node.forkserver.vaults[2].messages
    node.close()


async def test_nothing_is_confided_to_a_vault_that_is_not_sealed(node: Node) -> None:
    node.forkserver.vaults_are_ready = False
    node.ask(1)
    vault = await node.vault(0)
    await asyncio.sleep(0.05)
    assert not vault.messages
    vault.say(VaultReady(VERSION))
    assert (await vault.next(AssignPrompt)).prompt == b"prompt"


async def test_a_vault_that_speaks_before_it_is_sealed_is_ended(node: Node) -> None:
    node.forkserver.vaults_are_ready = False
    node.ask(1)
    vault = await node.vault(0)
    vault.say(WantCores(1), VaultReady(VERSION))
    assert (await node.failure()).code == "vault_lost"
    assert not vault.messages


async def test_a_vault_that_does_not_come_up_in_time_is_given_up() -> None:
    node = await Node.build(spare_vaults=0, vault_ready_s=0.1)
    node.forkserver.vaults_are_ready = False
    node.ask(1)
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for((await node.vault(0)).gone.wait(), 5)
    node.close()


async def test_a_dead_spare_is_replaced_after_a_while() -> None:
    node = await Node.build(spare_vaults=1)
    node.forkserver.vaults[0].die()
    await node.vault(1)
    assert len(node.forkserver.vaults) == 2
    node.close()


async def test_a_vault_that_keeps_the_cores_loses_them_and_the_next_one_gets_them() -> None:
    node = await Node.build(spare_vaults=0, vault_deadline_s=0.2)
    node.ask(1, "slow")
    node.ask(2, "other", level="isolated")
    slow, other = await node.vault(0), await node.vault(1)
    await slow.next(AssignPrompt)
    asked = await other.next(AssignPrompt)
    slow.say(WantCores(10))
    await slow.next(LeaseCores)
    other.say(PromptAccepted(asked.request_id, 1), WantCores(10))
    await other.next(LeaseCores)
    assert (await node.failure()).request_id == 1
    assert slow.gone.is_set()
    other.say(CoresDone(), Tokens(asked.request_id, (1,), finish="stop"))
    assert (await node.frontend.next(Tokens, skip=(Accepted,))).request_id == 2
    node.close()


async def test_a_vaults_piece_is_short_while_another_tenant_has_a_request_and_long_alone(node: Node) -> None:
    """Wherever that request is: with the service, with a vault, or just ended."""
    pace = node.relay.core_lease._pace
    pace.note(1, 0.02)
    pace.note(100, 0.02 + 100 * 0.005)
    pace.note = lambda tokens, seconds: None  # type: ignore[method-assign]  # nothing is learned from what follows
    node.ask(1, "long", tenant="floods")
    vault = await node.vault(0)
    await vault.next(AssignPrompt)
    pieces = []

    async def piece() -> None:
        vault.say(WantCores(5000))
        pieces.append((await vault.next(LeaseCores)).tokens)
        vault.say(CoresDone())

    await piece()
    node.send(SubmitTokens(2, "modest", (1, 2, 3), PARAMS))
    await piece()
    node.send(Cancel(2))
    await piece()
    assert pieces == [pace.long, pace.short, pace.short] and pace.long > 20 * pace.short


async def test_a_service_that_does_not_make_way_is_given_up_and_vaults_go_on() -> None:
    node = await Node.build(spare_vaults=0, service_deadline_s=0.2)
    node.service.say = lambda *messages: None  # type: ignore[method-assign]
    node.ask(1, level="isolated")
    vault = await node.vault(0)
    await vault.next(AssignPrompt)
    vault.say(WantCores(1))
    await vault.next(LeaseCores)
    assert node.service.gone.is_set()
    node.close()


async def test_stats_tell_how_long_vaults_take_to_be_ready() -> None:
    node = await Node.build(spare_vaults=0)
    node.send(AskStats())
    before = await node.frontend.next(Stats)
    assert before.vault_ready_ms is None and before.vault_wait_ms is None
    node.forkserver.vaults_are_ready = False
    node.ask(1)
    vault = await node.vault(0)
    await asyncio.sleep(0.05)
    vault.say(VaultReady(VERSION))
    await vault.next(AssignPrompt)
    node.send(AskStats())
    forked = await node.frontend.next(Stats)
    assert forked.vault_ready_ms is not None and forked.vault_ready_ms >= 50
    assert forked.vault_wait_ms is not None and forked.vault_wait_ms >= 50
    node.close()


async def test_who_gets_a_spare_vault_did_not_wait() -> None:
    node = await Node.build(spare_vaults=1)
    await asyncio.sleep(0.05)
    node.forkserver.vaults_are_ready = False
    node.ask(1)
    await node.forkserver.vaults[0].next(AssignPrompt)
    node.send(AskStats())
    assert (await node.frontend.next(Stats)).vault_wait_ms == 0
    node.close()


async def test_many_spare_vaults_are_made_few_at_a_time() -> None:
    node = Node(spare_vaults=2 * MOST_MADE_AT_ONCE)
    vaults = node.forkserver.vaults
    assert len(vaults) == MOST_MADE_AT_ONCE
    await node.vault(2 * MOST_MADE_AT_ONCE - 1)
    await asyncio.sleep(0)
    assert len(vaults) == 2 * MOST_MADE_AT_ONCE, "each that was sealed made way for one more"
    node.close()


async def test_spare_vaults_take_the_places_that_sessions_leave() -> None:
    ending: list[Callable[[], None]] = []
    node = await Node.build(spare_vaults=2)
    forkserver: Any = node.forkserver
    node.relay.vaults.close()
    before = len(node.forkserver.vaults)
    slots = LinkSlots({0: 10, 1: 11}, lambda child, slot, then: ending.append(then))
    node.relay.vaults.open(forkserver, LinkShape(3, 16, 2), slots)
    assert len(node.forkserver.vaults) == before + 2 and slots.free == 0
    node.ask(1)
    await node.forkserver.vaults[before].next(AssignPrompt)
    assert len(node.forkserver.vaults) == before + 2, "there is no slot for another"
    node.send(Cancel(1))
    ending.pop()()
    assert len(node.forkserver.vaults) == before + 3
    node.close()


async def test_a_vault_at_a_place_gets_that_memory_and_leaves_the_place_when_it_has_ended() -> None:
    """Where links are in a device's memory: it is attached when it is sealed, and ended, not killed, when it goes."""
    ending: list[Callable[[], None]] = []

    def end(child: Child, slot: int, then: Callable[[], None]) -> None:
        ending.append(then)

    node = await Node.build(spare_vaults=0)
    node.forkserver.vaults_are_ready = False
    forkserver: Any = node.forkserver
    slots = LinkSlots({4: 40}, end, weights=41)
    node.relay.vaults.open(forkserver, LinkShape(3, 16, 2), slots)
    node.ask(1)
    vault = await node.vault(0)
    assert node.forkserver.given == [(40, 40, 41)] and slots.free == 0
    assert not node.service.links
    vault.say(VaultReady(VERSION))
    asked = await vault.next(AssignPrompt)
    node.ask(2, "other")
    vault.die()
    assert {(await node.failure()).request_id, (await node.failure()).request_id} == {1, 2}
    assert list(node.service.slots.values()) == [4] and asked.request_id and len(ending) == 1 and slots.free == 0
    ending.pop()()
    assert slots.free == 1
    node.close()
