"""Fresh vaults in waiting, and vaults that do not come up or do not give the cores back."""

from __future__ import annotations

import asyncio

from cloister.messages.generation import VERSION, Accepted, AskStats, Stats, Tokens
from cloister.messages.vault import Confide, CoresDone, LeaseCores, Understood, VaultReady, WantCores
from tests.controller.fakes import House


async def test_spare_vaults_are_taken_in_turn_and_replaced() -> None:
    house = await House.build(spare_vaults=2)
    assert len(house.forkserver.vaults) == 2 and len(house.relay.sessions) == 0
    house.ask(1, "a")
    assert await house.forkserver.vaults[0].next(Confide)
    await house.vault(2)
    house.ask(2, "b")
    assert await house.forkserver.vaults[1].next(Confide)
    assert not house.forkserver.vaults[2].messages
    house.close()


async def test_nothing_is_confided_to_a_vault_that_is_not_sealed(house: House) -> None:
    house.forkserver.vaults_are_ready = False
    house.ask(1)
    vault = await house.vault(0)
    await asyncio.sleep(0.05)
    assert not vault.messages
    vault.say(VaultReady(VERSION))
    assert (await vault.next(Confide)).prompt == b"prompt"


async def test_a_vault_that_speaks_before_it_is_sealed_is_ended(house: House) -> None:
    house.forkserver.vaults_are_ready = False
    house.ask(1)
    vault = await house.vault(0)
    vault.say(WantCores(1), VaultReady(VERSION))
    assert (await house.failure()).code == "vault_lost"
    assert not vault.messages


async def test_a_vault_that_does_not_come_up_in_time_is_given_up() -> None:
    house = await House.build(spare_vaults=0, vault_ready_s=0.1)
    house.forkserver.vaults_are_ready = False
    house.ask(1)
    assert (await house.failure()).code == "vault_lost"
    await asyncio.wait_for((await house.vault(0)).gone.wait(), 5)
    house.close()


async def test_a_dead_spare_is_replaced_after_a_while() -> None:
    house = await House.build(spare_vaults=1)
    house.forkserver.vaults[0].die()
    await house.vault(1)
    assert len(house.forkserver.vaults) == 2
    house.close()


async def test_a_vault_that_keeps_the_floor_loses_it_and_the_next_one_gets_it() -> None:
    house = await House.build(spare_vaults=0, vault_deadline_s=0.2)
    house.ask(1, "slow")
    house.ask(2, "other", level="isolated")
    slow, other = await house.vault(0), await house.vault(1)
    await slow.next(Confide)
    asked = await other.next(Confide)
    slow.say(WantCores(10))
    await slow.next(LeaseCores)
    other.say(Understood(asked.request_id, 1), WantCores(10))
    await other.next(LeaseCores)
    assert (await house.failure()).request_id == 1
    assert slow.gone.is_set()
    other.say(CoresDone(), Tokens(asked.request_id, (1,), finish="stop"))
    assert (await house.frontend.next(Tokens, skip=(Accepted,))).request_id == 2
    house.close()


async def test_a_service_that_does_not_make_way_is_given_up_and_vaults_go_on() -> None:
    house = await House.build(spare_vaults=0, service_deadline_s=0.2)
    house.service.say = lambda *messages: None  # type: ignore[method-assign]
    house.ask(1, level="isolated")
    vault = await house.vault(0)
    await vault.next(Confide)
    vault.say(WantCores(1))
    await vault.next(LeaseCores)
    assert house.service.gone.is_set()
    house.close()


async def test_stats_tell_how_long_vaults_take_to_be_ready() -> None:
    house = await House.build(spare_vaults=0)
    house.send(AskStats())
    before = await house.frontend.next(Stats)
    assert before.vault_ready_ms is None and before.vault_wait_ms is None
    house.forkserver.vaults_are_ready = False
    house.ask(1)
    vault = await house.vault(0)
    await asyncio.sleep(0.05)
    vault.say(VaultReady(VERSION))
    await vault.next(Confide)
    house.send(AskStats())
    forked = await house.frontend.next(Stats)
    assert forked.vault_ready_ms is not None and forked.vault_ready_ms >= 50
    assert forked.vault_wait_ms is not None and forked.vault_wait_ms >= 50
    house.close()


async def test_who_gets_a_spare_vault_did_not_wait() -> None:
    house = await House.build(spare_vaults=1)
    await asyncio.sleep(0.05)
    house.forkserver.vaults_are_ready = False
    house.ask(1)
    await house.forkserver.vaults[0].next(Confide)
    house.send(AskStats())
    assert (await house.frontend.next(Stats)).vault_wait_ms == 0
    house.close()
