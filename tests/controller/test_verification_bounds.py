"""Verification where a request asks for it, and when services were ended too often. The test plays all processes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cloister.controller import deviations
from cloister.controller.verification import CHUNK
from cloister.messages.controller_frontend import Ask
from cloister.messages.controller_service import DetachLink, GeneratePartitioned
from cloister.messages.controller_vault import Claimed, Verified
from cloister.messages.generation import Accepted, Cancel, Tokens
from tests.controller.fakes import FakeVault, Node
from tests.controller.test_relay import settle
from tests.controller.test_verification import LONG, a_node, chunk, decoding


async def asked(node: Node, request_id: int, *, verify: bool) -> tuple[FakeVault, int]:
    node.send(Ask(request_id, "ann", "partitioned", "s", False, b"prompt", LONG, verify=verify))
    vault = await node.vault(request_id - 1)
    number = (await vault.serve_first(7)).request_id
    await node.service.next(GeneratePartitioned)
    await node.frontend.next(Tokens, skip=(Accepted,))
    return vault, number


@pytest.mark.parametrize("mode", ["off", "late", "sample:0.000001"])
async def test_a_request_that_asks_for_it_is_verified_before_it_leaves(mode: str) -> None:
    node = await a_node(mode)
    vault, number = await asked(node, 1, verify=True)
    node.service.say(Tokens(number, (20,), finish="stop"))
    await vault.next(Claimed)
    await settle()
    assert not node.frontend.messages
    vault.say(Verified(number, (20,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20,), finish="stop")
    node.close()


async def test_one_that_does_not_ask_is_not() -> None:
    node = await a_node("off")
    vault, number = await asked(node, 1, verify=False)
    node.service.say(Tokens(number, (20,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20,), finish="stop")
    assert not [each for each in vault.messages if isinstance(each, Claimed)]
    node.close()


@pytest.fixture
async def weary(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    """A node that two deviations in an hour make weary of starting services; `late` otherwise."""
    monkeypatch.setattr(deviations, "MOST_RESTARTS", 2)
    node = await a_node("late")
    yield node
    node.close()


async def deviate(node: Node, request_id: int) -> int:
    """An account of its own each time."""
    vault, number = await decoding(node, request_id, tenant=f"account {request_id}")
    node.service.say(Tokens(number, (9,), finish="stop"))
    await vault.next(Claimed)
    vault.say(Verified(number, (8,), finish="stop"))
    return number


async def test_many_accounts_end_the_service_so_often_and_no_more(weary: Node) -> None:
    for request_id in (1, 2):
        before = weary.service
        await deviate(weary, request_id)
        assert (await weary.failure()).code == "deviation"
        await before.gone.wait()
        await weary.start_service()
    other, kept = await decoding(weary, 3, tenant="bob")
    number = await deviate(weary, 4)
    assert (await weary.service.next(Cancel, skip=(DetachLink, GeneratePartitioned))).request_id == number
    assert (await weary.frontend.next(Tokens)).tokens == (8,)
    assert not weary.service.gone.is_set()
    tokens = await chunk(weary, other, kept, 40)
    assert (await weary.frontend.next(Tokens)).tokens == tokens


async def test_then_everything_is_verified_before_it_leaves_until_an_hour_is_over(
    weary: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await deviate(weary, 1)
    assert (await weary.failure()).code == "deviation"
    await weary.start_service()
    under_way, number = await decoding(weary, 2)
    weary.service.say(*(Tokens(number, (token,)) for token in range(CHUNK)))
    await under_way.next(Claimed)
    assert [(await weary.frontend.next(Tokens)).tokens for _ in range(CHUNK)]  # late: at once
    await deviate(weary, 3)
    assert (await weary.failure()).code == "deviation"
    await weary.start_service()
    under_way.say(Verified(number, tuple(range(CHUNK))))
    await settle()
    assert (await weary.service.next(GeneratePartitioned)).made == tuple(range(CHUNK))
    vault, later = await decoding(weary, 4, tenant="bob")
    for its, each in ((under_way, number), (vault, later)):
        weary.service.say(Tokens(each, (20,), finish="stop"))
        await its.next(Claimed)
        await settle()
        assert not weary.frontend.messages
        its.say(Verified(each, (20,), finish="stop"))
        assert (await weary.frontend.next(Tokens)).tokens == (20,), "what was released before does not leave again"
    monkeypatch.setattr(deviations, "HOUR_S", 0.0)
    vault, number = await decoding(weary, 5, tenant="eve")
    weary.service.say(Tokens(number, (20,)))
    assert (await weary.frontend.next(Tokens)).tokens == (20,)
