"""An answer that is verified as at `all` goes on in its vault without a service that deviates, aborts or ends. The test
plays service and vaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cloister.controller.deviations import MOST_TROUBLES
from cloister.controller.verification import CHUNK
from cloister.messages.controller_frontend import Ask
from cloister.messages.controller_service import DetachLink, GeneratePartitioned
from cloister.messages.controller_vault import Claimed, FinishAlone, LinkBroken, Release, Verified
from cloister.messages.generation import Accepted, Cancel, Failed, Stats, Tokens
from cloister.messages.types import TokenLogprob
from tests.controller.fakes import FakeVault, Node
from tests.controller.test_relay import settle
from tests.controller.test_verification import LONG, SCORED, a_node, chunk, decoding


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = await a_node("all")
    yield node
    node.close()


LIES = {
    "a token": (Tokens(0, (20, 21), finish="stop"), Verified(0, (20, 22)), "Token 3", "22"),
    "the first token": (Tokens(0, (20, 21), finish="stop"), Verified(0, (19,)), "Token 2", "19"),
    "an early end": (Tokens(0, (20,), finish="stop"), Verified(0, (20,)), "Token 2", "does not end"),
    "another end": (Tokens(0, (20,), finish="length"), Verified(0, (20,), finish="stop"), "Token 2", "end"),
    "a hidden end": (Tokens(0, (20, 21), finish="stop"), Verified(0, (20,), finish="stop"), "Token 2", "end"),
}


async def lied(node: Node, lie: str) -> tuple[FakeVault, int]:
    vault, number = await decoding(node)
    claim, honest, _, _ = LIES[lie]
    node.service.say(Tokens(number, claim.tokens, finish=claim.finish))
    await vault.next(Claimed)
    vault.say(Verified(number, honest.tokens, finish=honest.finish))
    return vault, number


@pytest.mark.parametrize("lie", LIES)
async def test_a_deviation_behind_what_left_at_once_ends_answer_vault_and_service(lie: str) -> None:
    node = await a_node("late")
    before = node.service
    claim, honest, position, expected = LIES[lie]
    vault, _ = await lied(node, lie)
    failure = await node.failure()
    assert failure.code == "deviation" and position in failure.message and expected in failure.message
    assert not any(str(token) in failure.message for token in set(claim.tokens) - set(honest.tokens))
    await asyncio.wait_for(vault.gone.wait(), 5)
    await asyncio.wait_for(before.gone.wait(), 5)
    node.close()


@pytest.mark.parametrize("lie", LIES)
async def test_a_deviation_ends_the_service_and_the_vault_goes_on_alone(
    node: Node, lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, honest = node.service, LIES[lie][1]
    vault, number = await lied(node, lie)
    assert (await vault.next(FinishAlone)).request_id == number
    await asyncio.wait_for(before.gone.wait(), 5)
    rest = () if honest.finish else (30, 31)
    if rest:
        vault.say(Verified(number, rest[:1]), Verified(number, rest[1:], finish="length"))
    left = await node.frontend.next(Tokens)
    assert (left.tokens, left.finish) == ((*honest.tokens, *rest), honest.finish or "length")
    assert f"deviated at {LIES[lie][2].lower()}" in caplog.text


async def test_alone_chunks_leave_as_ever_and_no_other_word_of_the_service(node: Node) -> None:
    vault, number = await decoding(node)
    first = await chunk(node, vault, number, 20)
    assert (await node.frontend.next(Tokens)).tokens == first
    node.service.say(Failed(number, "invalid_request", "", param="prompt"))
    assert (await vault.next(FinishAlone)).request_id == number
    await node.service.next(Cancel, skip=(DetachLink,))
    node.service.say(Tokens(number, (1,)), Failed(number, "queue_full", "", 7), Tokens(number, (), finish="stop"))
    for token in range(40, 40 + CHUNK - 1):
        vault.say(Verified(number, (token,)))
    await settle()
    assert not node.frontend.messages
    vault.say(Verified(number, (60,)))
    assert (await node.frontend.next(Tokens)).tokens == (*range(40, 40 + CHUNK - 1), 60)
    vault.say(Verified(number, (61,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (61,), finish="stop")
    assert (await vault.next(Release)).request_id == number


async def test_alone_a_vault_answers_until_the_service_has_stopped(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    vault, number = await decoding(node)
    busy, held = node.service, list[object]()
    busy.say(Failed(number, "queue_full", ""))
    monkeypatch.setattr(busy, "say", lambda *messages: held.extend(messages))
    await vault.next(FinishAlone)
    vault.say(Verified(number, (61,), finish="stop"))
    assert (await node.frontend.next(Tokens)).finish == "stop"
    await settle()
    assert held and not vault.messages  # the service is still in a step, and may ask
    monkeypatch.undo()
    busy.say(Stats(), Stats())
    assert (await vault.next(Release)).request_id == number


TOO_MUCH_ALONE = {
    "more than was asked for": Verified(0, (20,) * 64),
    "a token of no model": Verified(0, (100,)),
    "unwanted logprobs": Verified(0, (20,), (TokenLogprob(-0.5),)),
    "no such sequence": Verified(0, (20,), sequence=1),
    "a recitation of what is not watched": Verified(0, (), finish="content_filter"),
}


@pytest.mark.parametrize("said", TOO_MUCH_ALONE)
async def test_alone_a_vault_that_says_what_it_may_not_is_ended_and_not_the_service(node: Node, said: str) -> None:
    vault, number = await decoding(node)
    node.service.say(Failed(number, "queue_full", ""))
    await vault.next(FinishAlone)
    lie = TOO_MUCH_ALONE[said]
    vault.say(Verified(number, lie.tokens, lie.logprobs, lie.finish, lie.sequence))
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert not node.service.gone.is_set()


async def test_a_service_that_asked_the_vault_for_something_else_is_ended(node: Node) -> None:
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,), finish="stop"))
    await vault.next(Claimed)
    before = node.service
    vault.say(Verified(number, (20,), finish="stop", asked_otherwise=True))
    assert (await node.frontend.next(Tokens)).finish == "stop"
    await asyncio.wait_for(before.gone.wait(), 5)


async def test_logprobs_are_the_vaults(node: Node) -> None:
    vault, number = await decoding(node, params=SCORED)
    good = TokenLogprob(-0.5, ((20, -0.5),))
    node.service.say(Tokens(number, (20,), (good,), finish="stop"))
    await vault.next(Claimed)
    honest = TokenLogprob(-0.5, ((20, -0.4999),))
    before = node.service
    vault.say(Verified(number, (20,), (honest,), finish="stop"))
    assert (await node.frontend.next(Tokens)).logprobs == (honest,)
    await asyncio.wait_for(before.gone.wait(), 5)


async def troubled(node: Node) -> None:
    for request_id in range(1, MOST_TROUBLES + 1):
        vault, number = await decoding(node, request_id)
        node.service.say(Tokens(number, (9,), finish="stop"))
        await vault.next(Claimed)
        before = node.service
        vault.say(Verified(number, (8,), finish="stop"))
        assert (await node.frontend.next(Tokens)).tokens == (8,)
        await asyncio.wait_for(before.gone.wait(), 5)
        await node.start_service()


async def test_one_tenants_vaults_cannot_end_the_service_for_ever(node: Node) -> None:
    """From then on its answers are its vaults' alone, which no service can ask."""
    await troubled(node)
    node.ask(9, "another session", params=LONG)
    vault = await node.vault(MOST_TROUBLES)
    number = (await vault.serve_first(7)).request_id
    assert (await vault.next(FinishAlone)).request_id == number
    vault.say(Verified(number, (8,), finish="stop"))
    assert [(await node.frontend.next(Tokens, skip=(Accepted,))).tokens for _ in range(2)] == [(7,), (8,)]
    await settle()
    assert MOST_TROUBLES + 1 not in node.service.links
    assert all(isinstance(each, DetachLink) for each in node.service.messages)
    await decoding(node, MOST_TROUBLES + 2, tenant="bob")


async def test_an_hour_later_its_answers_are_the_services_again(node: Node) -> None:
    await troubled(node)
    node.relay._node.verification.deviations._troubles["ann"].clear()
    await decoding(node, MOST_TROUBLES + 1)


ABORTS = {
    "refused": Failed(0, "service_unavailable", "words of its own"),
    "later": Failed(0, "queue_full", "", 42),
    "a field": Failed(0, "invalid_request", "", param="logit_bias"),
    "its vault": Failed(0, "vault_lost", "It did not answer in time."),
}


@pytest.mark.parametrize("abort", ABORTS)
async def test_an_abort_is_a_delay_whatever_the_service_says(node: Node, abort: str) -> None:
    vault, number = await decoding(node)
    said = ABORTS[abort]
    node.service.say(Tokens(number, (20,)), Failed(number, said.code, said.message, said.retry_after, param=said.param))
    assert (await vault.next(FinishAlone)).request_id == number
    vault.say(Verified(number, (20,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20,), finish="stop")
    assert not node.service.gone.is_set()


async def test_a_second_service_that_ends_is_the_last_that_an_answer_waits_for(node: Node) -> None:
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,)))
    node.service.die()
    await settle()
    await node.start_service()
    await node.service.next(GeneratePartitioned)
    assert not vault.messages
    node.service.die()
    assert (await vault.next(FinishAlone)).request_id == number
    vault.say(Verified(number, (20,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20,), finish="stop")


@pytest.mark.parametrize("mode", ["all", "late"])
async def test_a_wrong_question_ends_the_link_and_not_what_is_verified(mode: str) -> None:
    node = await a_node(mode)
    vault, number = await decoding(node)
    vault.say(LinkBroken("link_malformed"))
    if mode == "late":
        assert (await node.failure()).code == "vault_lost"
        await asyncio.wait_for(vault.gone.wait(), 5)
        node.close()
        return
    assert (await vault.next(FinishAlone)).request_id == number
    await node.service.next(DetachLink, skip=(Cancel,))
    vault.say(Verified(number, (20,), finish="stop"))
    assert (await node.frontend.next(Tokens)).finish == "stop"
    node.ask(2, "session 1", keep=True, params=LONG)
    later = (await vault.serve_first(7)).request_id
    assert (await vault.next(FinishAlone)).request_id == later  # its link stays broken; the session is kept
    links = list(node.service.links)
    node.service.die()
    await settle()
    await node.start_service()
    assert vault and not node.service.links and links
    node.close()


async def test_while_no_service_is_up_answers_are_their_vaults(node: Node) -> None:
    node.relay.availability.close(("partitioned",))
    node.service.die()
    await settle()
    node.ask(1, params=LONG)
    vault = await node.vault(0)
    number = (await vault.serve_first(7)).request_id
    assert (await vault.next(FinishAlone)).request_id == number
    vault.say(Verified(number, (20,), finish="stop"))
    assert [(await node.frontend.next(Tokens, skip=(Accepted,))).tokens for _ in range(2)] == [(7,), (20,)]


async def test_an_answer_that_outgrew_the_vaults_record_goes_on_alone(node: Node) -> None:
    vault, number = await decoding(node)
    vault.say(FinishAlone(number))
    assert (await vault.next(FinishAlone)).request_id == number
    await node.service.next(Cancel, skip=(DetachLink,))
    assert not node.service.gone.is_set()


async def test_an_account_whose_vaults_end_again_and_again_gets_vaults_that_no_service_can_ask(node: Node) -> None:
    """A bridge to another machine ends its vault with the link."""
    for request_id in range(1, MOST_TROUBLES + 1):
        vault, _ = await decoding(node, request_id)
        vault.die()
        assert (await node.failure()).code == "vault_lost"
        await node.service.next(Cancel, skip=(DetachLink,))
    links = list(node.service.links)
    node.ask(9, "another session", params=LONG)
    vault = await node.vault(MOST_TROUBLES)
    assert (await vault.serve_first(7)).request_id == (await vault.next(FinishAlone)).request_id
    assert node.service.links == links


async def test_a_prompt_that_is_read_while_the_service_ends_goes_on(node: Node) -> None:
    node.ask(1, params=LONG)
    vault = await node.vault(0)
    node.service.die()
    await settle()
    assert not [each for each in node.frontend.messages if isinstance(each, Failed)]
    number = (await vault.serve_first(7)).request_id
    assert (await vault.next(FinishAlone)).request_id == number


async def test_one_answers_deviation_ends_no_verified_one_of_its_session() -> None:
    """At `late` the session of the first would end."""
    node = await a_node("late")
    node.ask(1, "one", keep=True, params=LONG)
    vault = await node.vault(0)
    numbers = [(await vault.serve_first(7)).request_id]
    node.send(Ask(2, "ann", "partitioned", "one", True, b"prompt", LONG, verify=True))
    numbers.append((await vault.serve_first(7)).request_id)
    await node.service.next(GeneratePartitioned)
    node.service.say(Tokens(numbers[0], (9,), finish="stop"))
    await vault.next(Claimed, skip=(Release,))
    vault.say(Verified(numbers[0], (8,), finish="stop"))
    assert (await node.failure()).code == "deviation"
    assert (await vault.next(FinishAlone, skip=(Release,))).request_id == numbers[1]
    vault.say(Verified(numbers[1], (20,), finish="stop"))
    assert (await node.frontend.next(Tokens)).finish == "stop"
    node.close()
