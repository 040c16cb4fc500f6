"""Which vault a request gets, and when vaults end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cloister.controller.attention import LinkSlots
from cloister.controller.vaults import MOST_MADE_AT_ONCE
from cloister.link.memory import LinkShape
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted, Release, VaultReady
from cloister.messages.generation import Accepted, Cancel, Tokens
from cloister.messages.types import VERSION
from tests.controller.fakes import FakeVault, Node


async def finish(node: Node, vault: FakeVault) -> None:
    """Answer the next request of a vault at `isolated`."""
    asked = await vault.next(AssignPrompt, skip=(Release,))
    vault.say(PromptAccepted(asked.request_id, 1), Tokens(asked.request_id, (1,), finish="stop"))
    await node.frontend.next(Tokens, skip=(Accepted,))


async def test_who_has_a_vault_leaves_the_last_spare_one_to_who_has_none() -> None:
    """Else a tenant that opens session after session has every new vault, and all cores are busy making them."""
    node = await Node.build(spare_vaults=2)
    node.ask(1, "a", tenant="floods")
    node.forkserver.vaults_are_ready = False
    node.ask(2, "a", tenant="modest")
    third, fourth = await node.vault(2), await node.vault(3)
    node.ask(3, "b", tenant="floods")
    third.say(VaultReady(VERSION))
    node.ask(4, "b", tenant="modest")
    node.ask(5, "a", tenant="newcomer")
    assert (await third.next(AssignPrompt)).request_id & 0xFF == 5
    fourth.say(VaultReady(VERSION))
    (await node.vault(4)).say(VaultReady(VERSION))
    assert (await fourth.next(AssignPrompt)).request_id & 0xFF == 3
    assert len(node.relay.sessions) == 4
    node.close()


async def test_who_is_alone_may_have_every_spare_vault_and_so_many_made_at_once() -> None:
    node = await Node.build(spare_vaults=2)
    node.forkserver.vaults_are_ready = False
    for number in range(10):
        node.ask(number, f"s-{number}", tenant="alone")
    assert len(node.relay.sessions) == 2 + MOST_MADE_AT_ONCE
    node.ask(20, tenant="newcomer")
    assert len(node.relay.sessions) == 3 + MOST_MADE_AT_ONCE, "who has none does not wait for what another wants"
    node.close()


async def test_one_session_one_vault_and_never_another_tenants(node: Node) -> None:
    node.ask(1, "same", tenant="ann", keep=True)
    node.ask(2, "same", tenant="ann", keep=True)
    node.ask(3, "same", tenant="bob", keep=True)
    node.ask(4, "other", tenant="ann", keep=True)
    ids = [[(await vault.next(AssignPrompt)).request_id & 0xFF for _ in range(count)] for vault, count in
           [(await node.vault(0), 2), (await node.vault(1), 1), (await node.vault(2), 1)]]  # fmt: skip
    assert ids == [[1, 2], [3], [4]] and len(node.forkserver.vaults) == 3


async def test_a_trust_group_shares_a_vault_but_not_with_a_tenant_of_its_name(node: Node) -> None:
    node.ask(1, "random-1", tenant="ann", group="team")
    node.ask(2, "random-2", tenant="bob", group="team")
    node.ask(3, "random-3", tenant="team")
    node.ask(4, "named", tenant="ann", group="team", keep=True)
    node.ask(5, "named", tenant="bob", group="team", keep=True)
    await node.vault(2)
    assert len(node.forkserver.vaults) == 3
    assert len(node.relay.sessions) == 3


async def test_a_one_off_session_ends_with_its_last_request(node: Node) -> None:
    node.ask(1, level="isolated")
    node.ask(2, level="isolated")
    vault = await node.vault(0)
    await finish(node, vault)
    assert not vault.gone.is_set()
    await finish(node, vault)
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert len(node.relay.sessions) == 0


async def test_a_kept_session_waits_for_its_next_request_but_not_for_ever() -> None:
    node = await Node.build(spare_vaults=0, session_idle_s=0.2)
    node.ask(1, level="isolated", keep=True)
    vault = await node.vault(0)
    await finish(node, vault)
    await asyncio.sleep(0.1)
    node.ask(2, level="isolated", keep=True)
    await asyncio.sleep(0.2)
    assert not vault.gone.is_set()  # busy, however long
    await finish(node, vault)
    await asyncio.wait_for(vault.gone.wait(), 5)
    node.close()


async def test_beyond_the_limit_the_longest_idle_session_makes_way_and_a_busy_one_does_not() -> None:
    node = await Node.build(spare_vaults=0, max_vaults=2, max_waiting_for_vaults=1)
    for request_id, name in ((1, "a"), (2, "b")):
        node.ask(request_id, name, level="isolated", keep=True)
    first, second = await node.vault(0), await node.vault(1)
    await finish(node, second)
    await finish(node, first)
    node.ask(3, "c", level="isolated", keep=True)
    await asyncio.wait_for(second.gone.wait(), 5)  # it was idle first
    assert not first.gone.is_set()
    node.ask(4, "a", level="isolated", keep=True)
    node.ask(5, "d", level="isolated")  # waits for a vault
    node.ask(6, "e", level="isolated")
    full = await node.failure()
    assert full.request_id == 6 and full.code == "queue_full" and full.retry_after >= 1
    node.send(Cancel(4))
    await asyncio.wait_for(first.gone.wait(), 5)
    confided = await (await node.vault(3)).next(AssignPrompt)
    assert confided.request_id & 0xFF == 5
    node.close()


@pytest.mark.parametrize("of", ["floods", "token-{:032x}"], ids=["a key", "tokens"])
async def test_no_tenant_has_all_vaults_and_the_next_to_come_need_not_wait(of: str) -> None:
    node = await Node.build(spare_vaults=0, max_vaults=4)
    for number in range(1, 6):
        node.ask(number, f"{number}", tenant=of.format(number), level="isolated")
    await node.vault(2)
    await asyncio.sleep(0.1)
    assert len(node.forkserver.vaults) == 3, "a quarter is left"
    node.ask(6, "6", tenant="modest", level="isolated")
    assert (await (await node.vault(3)).next(AssignPrompt)).request_id & 0xFF == 6
    node.close()


async def test_a_tenant_gives_up_its_own_idle_sessions_first() -> None:
    node = await Node.build(spare_vaults=0, max_vaults=4)
    for number, tenant in ((1, "modest"), (2, "floods"), (3, "floods"), (4, "floods")):
        node.ask(number, f"{number}", tenant=tenant, level="isolated", keep=True)
        await finish(node, await node.vault(number - 1))
    node.ask(5, "5", tenant="floods", level="isolated", keep=True)
    await asyncio.wait_for((await node.vault(1)).gone.wait(), 5)
    assert not (await node.vault(0)).gone.is_set(), "another tenant's session had to make way"
    node.ask(6, "6", tenant="third", level="isolated", keep=True)  # has none: takes one of who has most
    await node.vault(5)
    assert not (await node.vault(0)).gone.is_set()
    node.close()


async def test_a_request_waits_for_the_place_of_the_vault_that_ends_for_it() -> None:
    """A client of MPS takes seconds to end, and no other may have its place before. Nothing else ends meanwhile."""
    ending: list[Callable[[], None]] = []
    node = await Node.build(spare_vaults=0, max_vaults=2)
    slots = LinkSlots({0: 10, 1: 11}, lambda child, slot, then: ending.append(then))
    forkserver: Any = node.forkserver
    node.relay.vaults.open(forkserver, LinkShape(3, 16, 2), slots)
    for number in range(2):
        node.ask(number, f"s{number}", level="isolated", keep=True)
        await finish(node, await node.vault(number))
    node.ask(5, "another", level="isolated", keep=True)
    node.ask(6, "a third", level="isolated", keep=True)
    await asyncio.sleep(0.05)
    assert len(ending) == 1 and not node.frontend.messages and len(node.relay.sessions) == 1
    ending.pop()()
    await finish(node, await node.vault(2))
    node.close()
