"""At which levels requests are served, as the processes they need come and go."""

from __future__ import annotations

import asyncio

import pytest

from cloister.controller import vaults as module
from cloister.errors import ServiceUnavailable, VaultLost
from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_service import Generate
from cloister.messages.generation import AskStats, Stats
from tests.controller.fakes import PARAMS, SERVING, Node

ALL = SERVING.levels


async def levels_now(node: Node) -> tuple[str, ...]:
    node.send(AskStats())
    return (await node.frontend.next(Stats)).levels


async def until(node: Node, levels: tuple[str, ...]) -> None:
    async with asyncio.timeout(10):
        while await levels_now(node) != levels:
            await asyncio.sleep(0.005)


async def test_without_a_service_only_vaults_that_decode_alone_serve(node: Node) -> None:
    assert await levels_now(node) == ALL
    node.service.die()
    await until(node, ("isolated",))
    await node.start_service()
    assert await levels_now(node) == ALL


@pytest.mark.parametrize("spares", [0, 1])
async def test_while_vaults_do_not_start_their_levels_are_not_served_and_then_are_again(
    monkeypatch: pytest.MonkeyPatch, spares: int
) -> None:
    """Also where no spare ones are kept, so that nobody but the next request would find out."""
    monkeypatch.setattr(module, "SECONDS_BEFORE_REPLACING_A_DEAD_SPARE", 0.01)
    node = await Node.build(spare_vaults=spares)
    try:
        spawn, broken = node.forkserver.spawn, True

        def fails(role: str, *given: int, **more: int) -> object:
            child, ours = spawn(role, *given, **more)
            if broken and role == "vault":
                node.forkserver.vaults[-1].die()
            return child, ours

        monkeypatch.setattr(node.forkserver, "spawn", fails)
        node.forkserver.vaults_are_ready = False
        if spares:
            (await node.vault(0)).die()
        node.ask(1)
        assert (await node.failure()).code == VaultLost.code
        await until(node, ("open",))
        broken = False
        node.forkserver.vaults_are_ready = True
        await until(node, ALL)
    finally:
        node.close()


async def test_without_a_fork_server_no_level_with_vaults_is_served(node: Node) -> None:
    node.relay.vaults.close()
    assert await levels_now(node) == ("open",)


async def test_a_closed_level_is_refused_to_all_but_the_rehearsal(node: Node) -> None:
    availability = node.relay.availability
    availability.close(("open", "partitioned"))
    node.send(SubmitTokens(1, "ann", (1, 2), PARAMS))
    node.ask(2)
    for _ in range(2):
        refused = await node.failure()
        assert refused.code == ServiceUnavailable.code and "restarting" in refused.message
    assert await levels_now(node) == ("obfuscated", "isolated")
    availability.rehearser = node.gateway
    node.send(SubmitTokens(3, "ann", (1, 2), PARAMS))
    assert (await node.service.next(Generate)).prompt == (1, 2)
    availability.rehearser = 0
    availability.open("open")
    node.send(SubmitTokens(4, "ann", (3,), PARAMS))
    assert (await node.service.next(Generate)).prompt == (3,)
