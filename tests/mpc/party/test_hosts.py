"""Parties on two hosts: one of three is in a network namespace of its own, at the other end of a cable."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from cloister.errors import PartyLost
from tests.remote_vaults.host_process import another_network, why_no_namespaces

pytest.importorskip("spu", reason="SPU is not installed: pip install '.[mpc]'")

from tests.mpc.local import PROMPT, LocalParties, tokens

if TYPE_CHECKING:
    from cloister.mpc.client.passes import TokenPasses


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalParties]:
    if why := why_no_namespaces():
        pytest.skip(why)
    with another_network() as (name, there):
        here = f"{there.rsplit('.', 1)[0]}.1"
        elsewhere = {2: ["ip", "netns", "exec", name]}
        parties = LocalParties(tmp_path_factory.mktemp("hosts"), hosts=(here, here, there), before=elsewhere)
        try:
            asyncio.run(parties.deal())
            yield parties
        finally:
            parties.close()


async def test_two_hosts_answer_and_survive_the_loss_of_one(two_hosts: LocalParties) -> None:
    here, there = two_hosts.party(0).pid, two_hosts.party(2).pid
    assert os.readlink(f"/proc/{here}/ns/net") != os.readlink(f"/proc/{there}/ns/net")
    passes = await two_hosts.opened()
    expected = await tokens(passes, 2)
    step = asyncio.create_task(_step(passes))
    await asyncio.sleep(0.2)
    os.kill(there, signal.SIGKILL)
    with pytest.raises(PartyLost):
        await asyncio.wait_for(step, 60)
    again = await two_hosts.opened()
    assert two_hosts.party(2).pid != there
    assert await tokens(again, 2) == expected
    await again.close()
    await two_hosts.model.close()


async def _step(passes: TokenPasses) -> object:
    """One step after another: whenever the party is lost, it is in the middle of one."""
    at = 1
    while True:
        await passes.step(at, (PROMPT[0],), None)
        at = min(at + 1, 6)


def test_an_engine_has_no_network_of_its_own(two_hosts: LocalParties) -> None:
    own = os.readlink(f"/proc/{two_hosts.party(0).pid}/ns/net")
    engines = [os.readlink(f"/proc/{two_hosts.child(rank, 'engine').pid}/ns/net") for rank in range(3)]
    assert own not in engines and len(set(engines)) == 3
