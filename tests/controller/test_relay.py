"""Requests through the house, with every neighbour played by the test."""

from __future__ import annotations

import asyncio

import pytest

from cloister.errors import ProtocolError
from cloister.messages.frontend import EndSession
from cloister.messages.generation import (
    Accepted,
    AskStats,
    Cancel,
    Failed,
    Partition,
    SamplingParams,
    Stats,
    Submit,
    TokenLogprob,
    Tokens,
    label_spans,
)
from cloister.messages.service import AskView, DetachLink, Paused, View
from cloister.messages.vault import (
    Confide,
    FirstToken,
    LeaseCores,
    LinkBroken,
    Prefilled,
    Release,
    Understood,
    Verified,
    WantCores,
)
from tests.controller.fakes import VOCABULARY, House, Inbox

PARAMS = SamplingParams(max_tokens=8)


async def settle() -> None:
    """Let everything that is in a socket arrive."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_open_goes_to_the_service_and_back(house: House) -> None:
    house.send(Submit(5, "ann", (1, 2, 3), PARAMS, label_spans(3, public=2)))
    submit = await house.service.next(Submit)
    assert submit.prompt == (1, 2, 3) and submit.public == 2 and submit.partition is None
    house.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (4, 5), finish="stop"))
    assert (await house.frontend.next(Accepted)).request_id == 5
    assert await house.frontend.next(Tokens) == Tokens(5, (4, 5), finish="stop")
    assert not house.forkserver.vaults


async def test_partitioned_goes_through_a_vault_and_the_service_gets_only_what_is_public(house: House) -> None:
    house.ask(5)
    vault = await house.vault(0)
    asked = await vault.serve_first(7, public=(1, 2), logprob=TokenLogprob(-1.0))
    assert asked.prompt == b"prompt" and asked.level == "partitioned"
    assert await house.frontend.next(Accepted) == Accepted(5, 40)
    assert await house.frontend.next(Tokens) == Tokens(5, (7,), (TokenLogprob(-1.0),))
    submit = await house.service.next(Submit)
    link = house.service.links[0]
    assert submit.partition == Partition(link, 3, 7, 0, 0) and submit.prompt == (1, 2) and submit.public == 2
    assert submit.params.max_tokens == 8
    house.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (8,), finish="length"))
    assert await house.frontend.next(Tokens) == Tokens(5, (8,), finish="length")  # and no second Accepted
    assert (await house.service.next(DetachLink)).link == link  # a one-off session ends with its request
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_a_first_token_may_be_the_last(house: House) -> None:
    house.ask(5, keep=True)
    vault = await house.vault(0)
    asked = await vault.serve_first(7, finish="stop")
    assert (await house.frontend.next(Tokens, skip=(Accepted,))).finish == "stop"
    assert (await vault.next(Release)).request_id == asked.request_id
    assert not house.service.messages


async def test_isolated_never_reaches_the_service(house: House) -> None:
    house.ask(5, level="isolated")
    vault = await house.vault(0)
    asked = await vault.next(Confide)
    vault.say(Understood(asked.request_id, 3), Tokens(asked.request_id, (4,)), Tokens(asked.request_id, finish="stop"))
    assert (await house.frontend.next(Accepted)).prompt_tokens == 3
    assert (await house.frontend.next(Tokens)).tokens == (4,)
    assert (await house.frontend.next(Tokens)).finish == "stop"
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert [type(message) for message in house.service.messages] in ([], [DetachLink])


async def test_cancelled_in_the_vault(house: House) -> None:
    house.ask(5, keep=True)
    vault = await house.vault(0)
    asked = await vault.next(Confide)
    house.send(Cancel(5))
    assert (await vault.next(Cancel)).request_id == asked.request_id
    vault.say(
        Understood(asked.request_id, 3), Prefilled(asked.request_id, (FirstToken(1, 0),), 8)
    )  # was on its way already
    assert (await vault.next(Release)).request_id == asked.request_id
    await settle()
    assert not house.frontend.messages and not house.service.messages


async def test_cancelled_at_the_service_the_vault_is_released_only_when_nobody_asks_it_any_more(house: House) -> None:
    house.ask(5, keep=True)
    vault = await house.vault(0)
    asked = await vault.serve_first()
    await house.service.next(Submit)
    answer, house.service.say = house.service.say, lambda *messages: None  # type: ignore[method-assign]
    house.send(Cancel(5))
    assert (await house.service.next(Cancel)).request_id == asked.request_id
    await settle()
    assert not vault.messages  # the service has not said that it is past the step under way
    answer(Stats())
    assert (await vault.next(Release)).request_id == asked.request_id


async def test_a_dead_vault_fails_its_requests_and_no_others(house: House) -> None:
    for request_id, session in ((1, "a"), (2, "a"), (3, "b")):
        house.ask(request_id, session, keep=True)
    first, other = await house.vault(0), await house.vault(1)
    asked = await first.serve_first()
    await house.service.next(Submit)
    first.die()
    failures = [await house.failure(), await house.failure()]
    assert {failure.request_id for failure in failures} == {1, 2}
    assert {failure.code for failure in failures} == {"vault_lost"}
    assert (await house.service.next(DetachLink)).link == house.service.links[0]
    assert (await house.service.next(Cancel)).request_id == asked.request_id
    await other.serve_first()
    assert (await house.frontend.next(Tokens, skip=(Accepted,))).request_id == 3


async def test_a_service_that_gives_a_vault_up_ends_its_session(house: House) -> None:
    house.ask(1, keep=True)
    vault = await house.vault(0)
    asked = await vault.serve_first()
    await house.service.next(Submit)
    house.service.say(Failed(asked.request_id, "vault_lost", "It did not answer in time."))
    assert (await house.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_a_dead_service_fails_what_needs_it_and_its_successor_gets_the_living_links(house: House) -> None:
    house.ask(1, "kept", keep=True)
    house.ask(2, "alone", level="isolated")
    vault, alone = await house.vault(0), await house.vault(1)
    asked = await vault.serve_first()
    await house.service.next(Submit)
    house.send(Submit(3, "ann", (1,), PARAMS))
    await house.service.next(Submit)
    before = house.service
    before.die()
    assert {(await house.failure()).request_id, (await house.failure()).request_id} == {1, 3}
    assert (await vault.next(Release)).request_id == asked.request_id
    house.send(Submit(4, "ann", (1,), PARAMS))
    house.ask(5, "kept", keep=True)
    house.send(AskStats())
    assert [(await house.failure()).code for _ in range(2)] == ["service_unavailable"] * 2
    assert not (await house.frontend.next(Stats)).up

    await house.start_service()
    await settle()
    assert house.service is not before
    assert sorted(house.service.links) == before.links
    assert sorted(house.service.descriptors) == sorted(before.descriptors)
    running = await alone.next(Confide)
    alone.say(Understood(running.request_id, 1), Tokens(running.request_id, (4,), finish="stop"))
    assert (await house.frontend.next(Tokens, skip=(Accepted,))).request_id == 2
    house.ask(6, "kept", keep=True)
    await vault.serve_first()  # the same vault: its KV survived
    assert (await house.service.next(Submit, skip=(DetachLink,))).partition is not None


async def test_a_dead_gateway_leaves_nothing_running(house: House) -> None:
    house.ask(1, "one-off")
    house.ask(2, "kept", keep=True)
    vault, kept = await house.vault(0), await house.vault(1)
    house.relay.remove_frontend(house.gateway)
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert await kept.next(Cancel, skip=(Confide,))
    assert len(house.relay.sessions) == 1


async def test_two_gateways_may_use_the_same_numbers(house: House) -> None:
    other = Inbox()
    number = house.add_gateway(other)
    house.send(Submit(1, "ann", (1,), PARAMS))
    house.relay.from_frontend(number, Submit(1, "bob", (2,), PARAMS))
    first, second = await house.service.next(Submit), await house.service.next(Submit)
    assert first.request_id != second.request_id
    house.service.say(Accepted(second.request_id), Tokens(second.request_id, (9,), finish="stop"))
    assert await other.next(Tokens, skip=(Accepted,)) == Tokens(1, (9,), finish="stop")
    assert not house.frontend.messages


async def test_stats_add_what_only_vaults_counted(house: House) -> None:
    house.ask(1, keep=True)
    vault = await house.vault(0)
    await vault.serve_first(public=(1, 2))
    await house.service.next(Submit)
    house.ask(2, "other")
    house.send(AskStats())
    stats = await house.frontend.next(Stats, skip=(Accepted, Tokens))
    # 40 of the prompt, of which the service counts the two public ones; one token the vault chose itself
    assert (stats.prompt_tokens, stats.output_tokens) == (10 + 38, 20 + 1)
    assert stats.vaults == 2 and stats.running == 1 + 1 and stats.up


async def test_views_find_their_way(house: House) -> None:
    house.send(AskView(9))
    asked = await house.service.next(AskView)
    house.service.say(View(asked.request_id, True, asked_rows=3))
    assert await house.frontend.next(View) == View(9, True, asked_rows=3)


async def test_ending_a_session_ends_its_vault(house: House) -> None:
    house.ask(1, "mine", keep=True)
    vault = await house.vault(0)
    house.send(EndSession("bob", "mine"))
    house.send(EndSession("ann", "another"))
    await settle()
    assert not vault.gone.is_set()
    house.send(EndSession("ann", "mine"))
    assert (await house.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


@pytest.mark.parametrize("lie", ["foreign", "first twice", "tokens", "token", "cores twice", "link", "garbage"])
async def test_a_lying_vault_is_ended_and_touches_nobody_else(house: House, lie: str) -> None:
    house.ask(1, "a")
    house.ask(2, "b", keep=True)
    liar, honest = await house.vault(0), await house.vault(1)
    mine, other = await liar.next(Confide), await honest.next(Confide)
    liar.say(Understood(mine.request_id, 3))
    match lie:
        case "foreign":
            liar.say(Understood(other.request_id, 3))
        case "first twice":
            liar.say(
                Prefilled(mine.request_id, (FirstToken(1, 0),), 8), Prefilled(mine.request_id, (FirstToken(1, 0),), 8)
            )
        case "tokens":
            liar.say(Tokens(mine.request_id, (1,)))
        case "token":
            liar.say(Prefilled(mine.request_id, (FirstToken(VOCABULARY, 0),), 8))
        case "cores twice":
            liar.say(WantCores(1), WantCores(1))
        case "link":
            liar.say(LinkBroken("bad_question"))
        case "garbage":
            liar.say(Cancel(1))
    assert (await house.failure()).request_id == 1
    await asyncio.wait_for(liar.gone.wait(), 5)
    honest.say(Understood(other.request_id, 3), WantCores(3))
    await honest.next(LeaseCores)
    assert (await house.frontend.next(Accepted)).request_id == 2


@pytest.mark.parametrize("lie", ["stage", "token", "paused", "stats"])
async def test_a_lying_service_is_ended(house: House, lie: str) -> None:
    house.ask(1)
    vault = await house.vault(0)
    mine = await vault.next(Confide)
    house.send(Submit(2, "ann", (1,), PARAMS))
    submit = await house.service.next(Submit)
    match lie:
        case "stage":
            house.service.say(Tokens(mine.request_id, (1,)))
        case "token":
            house.service.say(Tokens(submit.request_id, (VOCABULARY,)))
        case "paused":
            house.service.say(Paused())
        case "stats":
            house.service.say(Stats())
    await asyncio.wait_for(house.service.gone.wait(), 5)
    assert {(await house.failure()).code for _ in range(2)} == {"service_unavailable"}


async def test_a_gateway_may_not_speak_of_links(house: House) -> None:
    with pytest.raises(ProtocolError):
        house.send(Submit(1, "ann", (1,), PARAMS, partitions=(Partition(1, 0, 1),)))
    with pytest.raises(ProtocolError):
        house.send(Cancel(1 << 40))
    house.send(Submit(1, "ann", (1,), PARAMS))
    with pytest.raises(ProtocolError):
        house.send(Submit(1, "ann", (1,), PARAMS))


async def test_tokens_before_the_prompt_was_read_end_the_service(house: House) -> None:
    house.send(Submit(1, "ann", (1,), PARAMS))
    submitted = await house.service.next(Submit)
    house.service.say(Tokens(submitted.request_id, (9,)))
    assert (await house.failure()).code == "service_unavailable"


async def test_a_second_sequence_is_not_the_users(house: House) -> None:
    house.send(Submit(1, "ann", (1,), PARAMS))
    submitted = await house.service.next(Submit)
    house.service.say(Accepted(submitted.request_id), Tokens(submitted.request_id, (9,), sequence=1))
    assert (await house.failure()).code == "service_unavailable"


async def test_several_sequences_are_not_for_this_level(house: House) -> None:
    house.ask(5)
    vault = await house.vault(0)
    asked = await vault.next(Confide)
    vault.say(Understood(asked.request_id, 3), Prefilled(asked.request_id, (FirstToken(1, 0), FirstToken(2, 1)), 8))
    assert (await house.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_a_vault_that_verifies_unasked_is_ended(house: House) -> None:
    house.ask(5)
    vault = await house.vault(0)
    asked = await vault.next(Confide)
    vault.say(Understood(asked.request_id, 3), Verified(asked.request_id, 0, 1))
    assert (await house.failure()).code == "vault_lost"
