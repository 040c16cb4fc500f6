"""What the service says leaves when the request's vault computed the same. The test plays service and vaults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cloister.controller.deviations import MOST_TROUBLES
from cloister.controller.verification import CHUNK
from cloister.errors import SetupError
from cloister.messages.controller_service import DetachLink, GeneratePartitioned
from cloister.messages.controller_vault import Claimed, Release, Verified
from cloister.messages.generation import Accepted, Cancel, Failed, Stats, Tokens
from cloister.messages.types import SamplingParams, TokenLogprob
from cloister.verify_mode import VerifyMode
from tests.controller.fakes import FakeVault, Node
from tests.controller.test_relay import settle

LONG = SamplingParams(max_tokens=64)
SCORED = SamplingParams(max_tokens=64, logprobs=1)
WATCHED = SamplingParams(max_tokens=64, stop_recitation=True)


async def a_node(mode: str) -> Node:
    return await Node.build(spare_vaults=0, verify=mode)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = await a_node("all")
    yield node
    node.close()


async def decoding(
    node: Node, request_id: int = 1, params: SamplingParams = LONG, tenant: str = "ann"
) -> tuple[FakeVault, int]:
    """A request whose first token is out; its vault, and its number inside."""
    node.ask(request_id, f"session {request_id}", keep=True, params=params, tenant=tenant)
    vault = await node.vault(request_id - 1)
    asked = await vault.serve_first(7)
    await node.service.next(GeneratePartitioned, skip=(DetachLink,))
    await node.frontend.next(Tokens, skip=(Accepted,))
    return vault, asked.request_id


async def test_nothing_leaves_before_the_vault_computed_it(node: Node) -> None:
    vault, number = await decoding(node)
    tokens = tuple(range(20, 20 + CHUNK))
    for token in tokens:
        node.service.say(Tokens(number, (token,)))
    assert await vault.next(Claimed) == Claimed(number, tokens)
    await settle()
    assert not node.frontend.messages
    vault.say(Verified(number, tokens))
    assert await node.frontend.next(Tokens) == Tokens(1, tokens)


async def test_the_end_is_verified_too(node: Node) -> None:
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,)), Tokens(number, (21,), finish="stop"))
    assert await vault.next(Claimed) == Claimed(number, (20, 21))
    vault.say(Verified(number, (20, 21), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20, 21), finish="stop")
    assert (await vault.next(Release)).request_id == number


async def chunk(node: Node, vault: FakeVault, number: int, first: int, **end: Any) -> tuple[int, ...]:
    """The service says a chunk of an answer, and its vault computes the same."""
    tokens = tuple(range(first, first + CHUNK))
    node.service.say(Tokens(number, tokens, **end))
    await vault.next(Claimed)
    vault.say(Verified(number, tokens, **end))
    await settle()
    return tokens


async def test_answers_of_a_tenant_leave_by_admission_whatever_the_service_puts_first(node: Node) -> None:
    (first, one), (second, two) = await decoding(node, 1), await decoding(node, 2)
    later = [await chunk(node, second, two, 40), await chunk(node, second, two, 60, finish="stop")]
    assert not node.frontend.messages
    early = [await chunk(node, first, one, 10), await chunk(node, first, one, 30, finish="stop")]
    left = [await node.frontend.next(Tokens) for _ in range(4)]
    assert [(each.request_id, each.tokens) for each in left] == [
        (1, early[0]), (2, later[0]), (1, early[1]), (2, later[1]),
    ]  # fmt: skip
    assert [each.finish for each in left] == [None, None, "stop", "stop"]


async def test_an_answer_that_fails_or_is_left_holds_no_other_up(node: Node) -> None:
    (_, _), (second, two) = await decoding(node, 1), await decoding(node, 2)
    tokens = await chunk(node, second, two, 40)
    assert not node.frontend.messages
    node.send(Cancel(1))
    assert await node.frontend.next(Tokens) == Tokens(2, tokens)


async def test_an_answer_that_begins_does_not_hold_up_the_round_under_way(node: Node) -> None:
    first, one = await decoding(node, 1)
    await chunk(node, first, one, 20)
    await node.frontend.next(Tokens)
    second, two = await decoding(node, 2)
    early = await chunk(node, first, one, 40)
    assert await node.frontend.next(Tokens) == Tokens(1, early)
    early = await chunk(node, first, one, 60, finish="stop")
    assert not node.frontend.messages
    later = await chunk(node, second, two, 80)
    assert await node.frontend.next(Tokens) == Tokens(1, early, finish="stop")
    assert await node.frontend.next(Tokens) == Tokens(2, later)


async def test_no_tenant_waits_for_another(node: Node) -> None:
    (_, _), (vault, number) = await decoding(node, 1), await decoding(node, 2, tenant="bob")
    tokens = await chunk(node, vault, number, 40)
    assert await node.frontend.next(Tokens) == Tokens(2, tokens)


async def test_a_vault_with_other_logprobs_than_tokens_is_ended(node: Node) -> None:
    vault, number = await decoding(node, params=SCORED)
    node.service.say(Tokens(number, (20,), (TokenLogprob(-0.5),), finish="stop"))
    await vault.next(Claimed)
    vault.say(Verified(number, (20,), (TokenLogprob(-0.5),) * 2, finish="stop"))
    assert (await node.failure()).code == "vault_lost"


@pytest.mark.parametrize(
    "too_much",
    [Tokens(0, (100,)), Tokens(0, (1,) * 64), Tokens(0, (1,), sequence=1), Tokens(0, (1,), (TokenLogprob(0.0),) * 2)],
)
async def test_a_claim_is_bounded_before_it_is_kept(node: Node, too_much: Tokens) -> None:
    _, number = await decoding(node)
    node.service.say(Tokens(number, too_much.tokens, too_much.logprobs, sequence=too_much.sequence))
    await asyncio.wait_for(node.service.gone.wait(), 5)


@pytest.mark.parametrize("unclaimed", [Verified(0, (1,)), Verified(0, ()), Verified(0, (1,), sequence=1)])
async def test_a_vault_that_verifies_what_nothing_claimed_is_ended(node: Node, unclaimed: Verified) -> None:
    vault, number = await decoding(node)
    vault.say(Verified(number, unclaimed.tokens, sequence=unclaimed.sequence))
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_other_answers_go_on_from_what_was_verified(node: Node) -> None:
    liar, lying = await decoding(node, 1, tenant="bob")
    honest, number = await decoding(node, 2)
    node.service.say(*(Tokens(number, (token,)) for token in range(CHUNK + 3)))
    assert len((await honest.next(Claimed)).tokens) == CHUNK
    node.service.say(Tokens(lying, (9,), finish="stop"))
    await liar.next(Claimed)
    liar.say(Verified(lying, (8,), finish="stop"))
    assert (await node.frontend.next(Tokens)).request_id == 1
    await node.start_service()
    await settle()
    assert not node.service.messages  # a claim is still with the vault
    honest.say(Verified(number, tuple(range(CHUNK))))
    assert (await node.frontend.next(Tokens)).tokens == tuple(range(CHUNK))
    again = await node.service.next(GeneratePartitioned)
    assert again.made == tuple(range(CHUNK)) and again.partition.first == 7
    node.service.say(Tokens(number, (40,), finish="stop"))
    await honest.next(Claimed)
    honest.say(Verified(number, (40,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(2, (40,), finish="stop")


async def test_a_killed_service_loses_no_verified_answer(node: Node) -> None:
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,)))
    await settle()
    node.service.die()
    await settle()
    assert not node.frontend.messages
    await node.start_service()
    assert (await node.service.next(GeneratePartitioned)).made == ()
    node.service.say(Tokens(number, (20,), finish="stop"))
    await vault.next(Claimed)
    vault.say(Verified(number, (20,), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (20,), finish="stop")


async def test_a_vault_that_cannot_verify_fails_the_answer_and_the_service_stops(node: Node) -> None:
    vault, number = await decoding(node)
    vault.say(Failed(number, "service_unavailable", "The vault has no room to verify the answer."))
    assert (await node.failure()).code == "service_unavailable"


@pytest.mark.parametrize("ends", ["full", "recites"])
async def test_a_vault_that_ends_an_answer_answers_until_the_service_has_stopped(
    node: Node, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault, number = await decoding(node, params=WATCHED)
    busy, held = node.service, list[object]()
    monkeypatch.setattr(busy, "say", lambda *messages: held.extend(messages))
    if ends == "full":
        vault.say(Failed(number, "service_unavailable", "The vault has no room to verify the answer."))
        assert (await node.failure()).code == "service_unavailable"
    else:
        vault.say(Verified(number, (), finish="content_filter"))
        assert (await node.frontend.next(Tokens)).finish == "content_filter"
    await busy.next(Cancel, skip=(DetachLink,))
    await settle()
    assert held and not vault.messages  # the service is still in a step, and may ask
    monkeypatch.undo()
    busy.say(Stats())
    assert (await vault.next(Release)).request_id == number


async def test_late_is_at_most_a_chunk_ahead() -> None:
    node = await a_node("late")
    vault, number = await decoding(node)
    node.service.say(*(Tokens(number, (token,)) for token in range(CHUNK + 2)))
    left = [await node.frontend.next(Tokens) for _ in range(CHUNK)]
    assert [token for each in left for token in each.tokens] == list(range(CHUNK))
    await settle()
    assert not node.frontend.messages
    assert (await vault.next(Claimed)).tokens == tuple(range(CHUNK))
    vault.say(Verified(number, tuple(range(CHUNK))))
    assert (await node.frontend.next(Tokens)).tokens == (CHUNK, CHUNK + 1)
    node.service.say(Tokens(number, (50,), finish="stop"))
    assert (await vault.next(Claimed)).tokens == (CHUNK, CHUNK + 1, 50)
    await settle()
    assert not node.frontend.messages  # the end waits, and with it the last token
    vault.say(Verified(number, (CHUNK, CHUNK + 1, 50), finish="stop"))
    assert await node.frontend.next(Tokens) == Tokens(1, (50,), finish="stop")
    node.close()


@pytest.mark.parametrize(("drawn", "verified"), [(0.05, True), (0.15, False)])
async def test_a_share_of_requests_is_verified(drawn: float, verified: bool) -> None:
    node = await a_node("sample:0.1")
    node.relay._node.verification._draw = lambda: drawn
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,), finish="stop"))
    await settle()
    assert bool(node.frontend.messages) is not verified
    assert bool([each for each in vault.messages if isinstance(each, Claimed)]) is verified
    node.close()


@pytest.mark.parametrize(
    ("text", "mode"),
    [("off", ("off", 0.0)), ("all", ("all", 1.0)), ("late", ("late", 1.0)), ("sample:0.25", ("sample", 0.25))],
)
def test_modes(text: str, mode: tuple[str, float]) -> None:
    found = VerifyMode.of(text)
    assert (found.name, found.share) == mode


@pytest.mark.parametrize("text", ["", "on", "sample", "sample:", "sample:0", "sample:2", "sample:nan", "all:0.5"])
def test_no_such_mode(text: str) -> None:
    with pytest.raises(SetupError, match="--verify"):
        VerifyMode.of(text)


async def test_released_at_once_an_abort_is_a_delay_once_and_then_one_error() -> None:
    node = await a_node("late")
    _, number = await decoding(node)
    node.service.say(Failed(number, "service_unavailable", "words of its own"))
    assert (await node.service.next(GeneratePartitioned)).made == ()
    node.service.say(Failed(number, "internal_error", "words of its own"))
    failure = await node.failure()
    assert failure.code == "vault_lost" and "words" not in failure.message
    node.close()


async def test_one_fault_that_ends_vaults_and_service_is_one_trouble() -> None:
    """A GPU's fault ends many answers at once."""
    node = await a_node("late")
    for number in [(await decoding(node, each))[1] for each in range(1, MOST_TROUBLES + 2)]:
        node.service.say(Failed(number, "vault_lost", "It did not answer in time."))
        assert (await node.failure()).code == "vault_lost"
    deviations = node.relay._node.verification.deviations
    assert deviations.too_many_of("ann")
    node.service.die()
    await settle()
    assert not deviations.too_many_of("ann")
    node.close()


async def claimed_lengths(node: Node, tokens: int) -> list[int]:
    vault, number = await decoding(node, params=SamplingParams(max_tokens=512))
    node.service.say(*(Tokens(number, (token % 64,)) for token in range(tokens)))
    lengths = []
    while sum(lengths) < tokens:
        claims = await vault.next(Claimed)
        vault.say(Verified(number, claims.tokens))
        lengths.append(len(claims.tokens))
    return lengths


async def test_beside_the_service_chunks_grow_with_the_answer(node: Node) -> None:
    """A pass on a device is mostly the reading of all weights. What leaves together stays a chunk."""
    node.relay.compute_beside()
    assert await claimed_lengths(node, 256) == [16, 16, 32, 64, 64, 64]
    left = [await node.frontend.next(Tokens) for _ in range(256 // CHUNK)]
    assert [len(each.tokens) for each in left] == [CHUNK] * len(left)


async def test_late_never_verifies_in_longer_chunks() -> None:
    """What is out and not verified could be another user's words."""
    node = await a_node("late")
    node.relay.compute_beside()
    assert await claimed_lengths(node, 128) == [CHUNK] * 8
    node.close()


async def test_in_longer_chunks_a_sampled_answer_is_no_further_ahead_of_its_vault() -> None:
    node = await a_node("sample:1")
    node.relay.compute_beside()
    vault, number = await decoding(node, params=SamplingParams(max_tokens=512))
    node.service.say(*(Tokens(number, (token % 64,)) for token in range(200)))
    out = verified = 0
    while verified < 128:
        await settle()
        out += sum(len(each.tokens) for each in node.frontend.messages)
        node.frontend.messages.clear()
        assert out == verified + CHUNK
        tokens = (await vault.next(Claimed)).tokens
        vault.say(Verified(number, tokens))
        verified += len(tokens)


@pytest.mark.parametrize("mode", ["off", "sample:0.1", "late", "all"])
async def test_a_watched_answer_leaves_only_as_its_vault_allows(mode: str) -> None:
    node = await a_node(mode)
    vault, number = await decoding(node, params=WATCHED)
    first, second = tuple(range(20, 20 + CHUNK)), tuple(range(40, 40 + CHUNK))
    node.service.say(Tokens(number, first))
    await vault.next(Claimed)
    await settle()
    assert not node.frontend.messages
    vault.say(Verified(number, first))
    assert await node.frontend.next(Tokens) == Tokens(1, first)
    node.service.say(Tokens(number, second))
    await vault.next(Claimed)
    vault.say(Verified(number, (), finish="content_filter"))
    node.service.say(Tokens(number, (60,), finish="stop"))  # it did not know yet
    assert await node.frontend.next(Tokens) == Tokens(1, finish="content_filter")
    assert (await node.service.next(Cancel, skip=(DetachLink,))).request_id == number
    assert (await vault.next(Release)).request_id == number
    assert not node.frontend.messages
    node.close()


async def test_the_service_does_not_learn_that_an_answer_is_watched(node: Node) -> None:
    node.ask(1, "session", keep=True, params=WATCHED)
    vault = await node.vault(0)
    assert (await vault.serve_first(7)).params.stop_recitation
    assert not (await node.service.next(GeneratePartitioned, skip=(DetachLink,))).params.stop_recitation


async def test_what_began_to_recite_in_a_part_of_a_chunk_stays(node: Node) -> None:
    vault, number = await decoding(node, params=WATCHED)
    tokens = tuple(range(20, 20 + CHUNK + 5))
    node.service.say(Tokens(number, tokens))
    await vault.next(Claimed)
    vault.say(Verified(number, tokens[:CHUNK]))
    assert await node.frontend.next(Tokens) == Tokens(1, tokens[:CHUNK])
    node.service.say(Tokens(number, tuple(range(50, 50 + 2 * CHUNK))))
    await vault.next(Claimed)
    await vault.next(Claimed)
    vault.say(Verified(number, tokens[CHUNK:]), Verified(number, (50, 51), finish="content_filter"))
    assert await node.frontend.next(Tokens) == Tokens(1, finish="content_filter")


async def test_only_a_vault_that_was_asked_to_ends_an_answer_for_its_words(node: Node) -> None:
    vault, number = await decoding(node)
    node.service.say(Tokens(number, (20,), finish="length"))
    await vault.next(Claimed)
    vault.say(Verified(number, (20,), finish="content_filter"))
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_a_service_cannot_say_that_an_answer_recites() -> None:
    node = await a_node("off")
    _, number = await decoding(node)
    before = node.service
    before.say(Tokens(number, (20,), finish="content_filter"))
    await asyncio.wait_for(before.gone.wait(), 5)
    node.close()
