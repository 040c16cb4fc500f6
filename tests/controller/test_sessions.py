"""Which vault a request gets, and when vaults end."""

from __future__ import annotations

import asyncio

from cloister.messages.generation import Accepted, Cancel, Tokens
from cloister.messages.vault import Confide, Release, Understood
from tests.controller.fakes import FakeVault, House


async def finish(house: House, vault: FakeVault) -> None:
    """Answer the next request of a vault at `isolated`."""
    asked = await vault.next(Confide, skip=(Release,))
    vault.say(Understood(asked.request_id, 1), Tokens(asked.request_id, (1,), finish="stop"))
    await house.frontend.next(Tokens, skip=(Accepted,))


async def test_one_session_one_vault_and_never_another_tenants(house: House) -> None:
    house.ask(1, "same", tenant="ann", keep=True)
    house.ask(2, "same", tenant="ann", keep=True)
    house.ask(3, "same", tenant="bob", keep=True)
    house.ask(4, "other", tenant="ann", keep=True)
    ids = [[(await vault.next(Confide)).request_id & 0xFF for _ in range(count)] for vault, count in
           [(await house.vault(0), 2), (await house.vault(1), 1), (await house.vault(2), 1)]]  # fmt: skip
    assert ids == [[1, 2], [3], [4]] and len(house.forkserver.vaults) == 3


async def test_a_trust_group_shares_a_vault_but_not_with_a_tenant_of_its_name(house: House) -> None:
    house.ask(1, "random-1", tenant="ann", group="team")
    house.ask(2, "random-2", tenant="bob", group="team")
    house.ask(3, "random-3", tenant="team")
    house.ask(4, "named", tenant="ann", group="team", keep=True)
    house.ask(5, "named", tenant="bob", group="team", keep=True)
    await house.vault(2)
    assert len(house.forkserver.vaults) == 3
    assert len(house.relay.sessions) == 3


async def test_a_one_off_session_ends_with_its_last_request(house: House) -> None:
    house.ask(1, level="isolated")
    house.ask(2, level="isolated")
    vault = await house.vault(0)
    await finish(house, vault)
    assert not vault.gone.is_set()
    await finish(house, vault)
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert len(house.relay.sessions) == 0


async def test_a_kept_session_waits_for_its_next_request_but_not_for_ever() -> None:
    house = await House.build(spare_vaults=0, session_idle_s=0.2)
    house.ask(1, level="isolated", keep=True)
    vault = await house.vault(0)
    await finish(house, vault)
    await asyncio.sleep(0.1)
    house.ask(2, level="isolated", keep=True)
    await asyncio.sleep(0.2)
    assert not vault.gone.is_set()  # busy, however long
    await finish(house, vault)
    await asyncio.wait_for(vault.gone.wait(), 5)
    house.close()


async def test_beyond_the_limit_the_longest_idle_session_makes_way_and_a_busy_one_does_not() -> None:
    house = await House.build(spare_vaults=0, max_vaults=2, max_waiting_for_vaults=1)
    for request_id, name in ((1, "a"), (2, "b")):
        house.ask(request_id, name, level="isolated", keep=True)
    first, second = await house.vault(0), await house.vault(1)
    await finish(house, second)
    await finish(house, first)
    house.ask(3, "c", level="isolated", keep=True)
    await asyncio.wait_for(second.gone.wait(), 5)  # it was idle first
    assert not first.gone.is_set()
    house.ask(4, "a", level="isolated", keep=True)
    house.ask(5, "d", level="isolated")  # waits for a vault
    house.ask(6, "e", level="isolated")
    full = await house.failure()
    assert full.request_id == 6 and full.code == "queue_full" and full.retry_after >= 1
    house.send(Cancel(4))
    await asyncio.wait_for(first.gone.wait(), 5)
    confided = await (await house.vault(3)).next(Confide)
    assert confided.request_id & 0xFF == 5
    house.close()
