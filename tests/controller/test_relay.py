"""Requests through the node, with every neighbour played by the test."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from cloister.config import ControllerSettings
from cloister.controller.relay import Relay
from cloister.errors import ProtocolError
from cloister.levels import PolicyName
from cloister.messages.controller_detector import Labels
from cloister.messages.controller_frontend import AskView, EndSession, SubmitTokens, View
from cloister.messages.controller_service import (
    DetachLink,
    Generate,
    GeneratePartitioned,
    GeneratePrompt,
    Paused,
    PublicPrefix,
)
from cloister.messages.controller_vault import (
    AssignPrompt,
    FirstToken,
    LeaseCores,
    LinkBroken,
    Prefilled,
    PromptAccepted,
    Release,
    WantCores,
)
from cloister.messages.generation import Accepted, AskStats, Cancel, Failed, Reuse, Stats, Tokens
from cloister.messages.types import Partition, SamplingParams, TokenLogprob
from tests.controller.fakes import SERVING, VOCABULARY, Inbox, Node, nothing_is_sealed

PARAMS = SamplingParams(max_tokens=8)


async def settle() -> None:
    """Let everything that is in a socket arrive."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def test_open_goes_to_the_service_and_back(node: Node) -> None:
    node.send(SubmitTokens(5, "ann", (1, 2, 3), PARAMS, 2))
    submit = await node.service.next(GeneratePrompt)
    assert submit.prompt == (1, 2, 3) and submit.public == 2
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (4, 5), finish="stop"))
    assert (await node.frontend.next(Accepted)).request_id == 5
    assert await node.frontend.next(Tokens) == Tokens(5, (4, 5), finish="stop")
    assert not node.forkserver.vaults


async def test_partitioned_goes_through_a_vault_and_the_service_gets_only_what_is_public(node: Node) -> None:
    node.ask(5, params=SamplingParams(max_tokens=8, logprobs=0))
    vault = await node.vault(0)
    asked = await vault.serve_first(7, public=(1, 2), logprob=TokenLogprob(-1.0))
    assert asked.prompt == b"prompt" and asked.level == "partitioned"
    assert await node.frontend.next(Accepted) == Accepted(5, 40)
    assert await node.frontend.next(Tokens) == Tokens(5, (7,), (TokenLogprob(-1.0),))
    submit = await node.service.next(GeneratePartitioned)
    link = node.service.links[0]
    assert submit.partition == Partition(link, 3, 7, 0, 0) and submit.public == (1, 2)
    assert submit.params.max_tokens == 8
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (8,), finish="length"))
    assert await node.frontend.next(Tokens) == Tokens(5, (8,), finish="length")  # and no second Accepted
    assert (await node.service.next(DetachLink)).link == link  # a one-off session ends with its request
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_without_a_seed_the_service_gets_the_one_that_the_vault_drew(node: Node) -> None:
    node.ask(5, params=SamplingParams(max_tokens=8, seed=None))
    vault = await node.vault(0)
    asked = await vault.serve_first(seed=41)
    assert asked.params.seed is None
    assert (await node.service.next(GeneratePartitioned)).params.seed == 41


async def test_a_first_token_may_be_the_last(node: Node) -> None:
    node.ask(5, keep=True)
    vault = await node.vault(0)
    asked = await vault.serve_first(7, finish="stop")
    assert (await node.frontend.next(Tokens, skip=(Accepted,))).finish == "stop"
    assert (await vault.next(Release)).request_id == asked.request_id
    assert not node.service.messages


async def test_isolated_never_reaches_the_service(node: Node) -> None:
    node.ask(5, level="isolated")
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(
        PromptAccepted(asked.request_id, 3), Tokens(asked.request_id, (4,)), Tokens(asked.request_id, finish="stop")
    )
    assert (await node.frontend.next(Accepted)).prompt_tokens == 3
    assert (await node.frontend.next(Tokens)).tokens == (4,)
    assert (await node.frontend.next(Tokens)).finish == "stop"
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert [type(message) for message in node.service.messages] in ([], [DetachLink])


async def test_cancelled_in_the_vault(node: Node) -> None:
    node.ask(5, keep=True)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    node.send(Cancel(5))
    assert (await vault.next(Cancel)).request_id == asked.request_id
    vault.say(
        PromptAccepted(asked.request_id, 3), Prefilled(asked.request_id, (FirstToken(1, 0),), 8)
    )  # was on its way already
    assert (await vault.next(Release)).request_id == asked.request_id
    await settle()
    assert not node.frontend.messages and not node.service.messages


async def test_cancelled_at_the_service_the_vault_is_released_only_when_nobody_asks_it_any_more(node: Node) -> None:
    node.ask(5, keep=True)
    vault = await node.vault(0)
    asked = await vault.serve_first()
    await node.service.next(Generate)
    answer, node.service.say = node.service.say, lambda *messages: None  # type: ignore[method-assign]
    node.send(Cancel(5))
    assert (await node.service.next(Cancel)).request_id == asked.request_id
    await settle()
    assert not vault.messages  # the service has not said that it is past the step under way
    answer(Stats())
    assert (await vault.next(Release)).request_id == asked.request_id


async def test_a_dead_vault_fails_its_requests_and_no_others(node: Node) -> None:
    for request_id, session in ((1, "a"), (2, "a"), (3, "b")):
        node.ask(request_id, session, keep=True)
    first, other = await node.vault(0), await node.vault(1)
    asked = await first.serve_first()
    await node.service.next(Generate)
    first.die()
    failures = [await node.failure(), await node.failure()]
    assert {failure.request_id for failure in failures} == {1, 2}
    assert {failure.code for failure in failures} == {"vault_lost"}
    assert (await node.service.next(DetachLink)).link == node.service.links[0]
    assert (await node.service.next(Cancel)).request_id == asked.request_id
    await other.serve_first()
    assert (await node.frontend.next(Tokens, skip=(Accepted,))).request_id == 3


async def test_a_service_that_gives_a_vault_up_ends_its_session(node: Node) -> None:
    node.ask(1, keep=True)
    vault = await node.vault(0)
    asked = await vault.serve_first()
    await node.service.next(Generate)
    node.service.say(Failed(asked.request_id, "vault_lost", "It did not answer in time."))
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


async def test_a_dead_service_fails_what_needs_it_and_its_successor_gets_the_living_links(node: Node) -> None:
    node.ask(1, "kept", keep=True)
    node.ask(2, "alone", level="isolated")
    vault, alone = await node.vault(0), await node.vault(1)
    asked = await vault.serve_first()
    await node.service.next(Generate)
    node.send(SubmitTokens(3, "ann", (1,), PARAMS))
    await node.service.next(Generate)
    before = node.service
    before.die()
    assert {(await node.failure()).request_id, (await node.failure()).request_id} == {1, 3}
    assert (await vault.next(Release)).request_id == asked.request_id
    node.send(SubmitTokens(4, "ann", (1,), PARAMS))
    node.ask(5, "kept", keep=True)
    node.send(AskStats())
    assert [(await node.failure()).code for _ in range(2)] == ["service_unavailable"] * 2
    assert not (await node.frontend.next(Stats)).up

    await node.start_service()
    await settle()
    assert node.service is not before
    assert sorted(node.service.links) == before.links
    assert sorted(node.service.descriptors) == sorted(before.descriptors)
    running = await alone.next(AssignPrompt)
    alone.say(PromptAccepted(running.request_id, 1), Tokens(running.request_id, (4,), finish="stop"))
    assert (await node.frontend.next(Tokens, skip=(Accepted,))).request_id == 2
    node.ask(6, "kept", keep=True)
    await vault.serve_first()  # the same vault: its KV survived
    assert (await node.service.next(Generate, skip=(DetachLink,))).partition is not None


async def test_a_dead_gateway_leaves_nothing_running(node: Node) -> None:
    node.ask(1, "one-off")
    node.ask(2, "kept", keep=True)
    vault, kept = await node.vault(0), await node.vault(1)
    node.relay.remove_frontend(node.gateway)
    await asyncio.wait_for(vault.gone.wait(), 5)
    assert await kept.next(Cancel, skip=(AssignPrompt,))
    assert len(node.relay.sessions) == 1


async def test_two_gateways_may_use_the_same_numbers(node: Node) -> None:
    other = Inbox()
    number = node.add_gateway(other)
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    node.relay.from_frontend(number, SubmitTokens(1, "bob", (2,), PARAMS))
    first, second = await node.service.next(Generate), await node.service.next(Generate)
    assert first.request_id != second.request_id
    node.service.say(Accepted(second.request_id), Tokens(second.request_id, (9,), finish="stop"))
    assert await other.next(Tokens, skip=(Accepted,)) == Tokens(1, (9,), finish="stop")
    assert not node.frontend.messages


async def test_stats_count_by_the_controllers_own_books(node: Node) -> None:
    node.ask(1, keep=True)
    vault = await node.vault(0)
    await vault.serve_first(public=(1, 2))
    await node.service.next(Generate)
    node.ask(2, "other")
    node.send(AskStats())
    stats = await node.frontend.next(Stats, skip=(Accepted, Tokens))
    assert (stats.prompt_tokens, stats.output_tokens) == (40, 1), "what the service says of them is not asked for"
    assert stats.vaults == 2 and stats.running == 2 and stats.up


async def test_no_number_of_the_services_crosses_that_means_nothing(node: Node) -> None:
    node.service.stats = Stats(
        running=-5, waiting=1 << 60, blocks_total=1 << 60, blocks_free=-1, steps=1 << 62, prompt_tokens=1 << 60,
        preemptions=1 << 62, reuse={"counted": Reuse(-1, 1 << 62, 5)}, evictions=-7,
        seconds={"step": 1.23456789, "merge": float("nan"), "rest": -1e300},
    )  # fmt: skip
    node.send(AskStats())
    stats = await node.frontend.next(Stats)
    assert (stats.running, stats.waiting, stats.prompt_tokens) == (0, 0, 0)
    assert stats.blocks_free == 0 and max(stats.blocks_total, stats.steps, stats.preemptions) <= 1 << 40
    assert stats.seconds == {"step": 1.2, "merge": 0.0, "rest": 0.0}
    assert stats.reuse == {"counted": Reuse(0, 1 << 40, 5)} and stats.evictions == 0


async def test_a_view_is_of_what_passed_through_our_own_hands(node: Node) -> None:
    node.send(AskView(5))
    assert await node.frontend.next(View) == View(5, known=False)
    node.ask(5)
    vault = await node.vault(0)
    await vault.serve_first(7, public=(1, 2))
    submit = await node.service.next(Generate)
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (8, 9)))
    await node.frontend.next(Tokens, skip=(Accepted,))
    await node.frontend.next(Tokens)
    node.send(AskView(5))
    rows, heads, dim = 2 * 2, 3, 16  # two tokens of the service's, two layers
    assert await node.frontend.next(View) == View(
        5, True, (1, 2), (7, 8, 9), rows, rows * heads * dim * 4, rows, rows * heads * (dim + 2) * 4, 2
    )
    node.send(SubmitTokens(6, "ann", (1, 2, 3), PARAMS))
    node.send(AskView(6))
    assert await node.frontend.next(View) == View(6, True, (1, 2, 3), layers=2)


async def test_a_view_says_what_a_detector_let_others_find_and_what_was_found(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append(request_id)
    node.send(SubmitTokens(7, "ann", tuple(range(40)), PARAMS, level="shared", text="text", ends=(4,)))
    node.relay.shared.labelled(Labels(read[0], b"\2\0", b"\2\0", b"\xff\xff"))
    submit = await node.service.next(Generate)
    assert await node.service.next(PublicPrefix) == PublicPrefix(submit.request_id, 16)
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (8,), cached=32, shared=16))
    await node.frontend.next(Tokens, skip=(Accepted,))
    node.send(AskView(7))
    view = await node.frontend.next(View)
    assert (view.labels, view.tiers, view.categories) == (b"\2\0", b"\2\0", b"\xff\xff")
    assert (view.found, view.found_shared) == (32, 16)
    monkeypatch.setattr(node.relay.views, "_serving", lambda: replace(SERVING, quantised={"shared": 100}))
    node.send(AskView(7))
    view = await node.frontend.next(View)
    assert (view.found, view.found_shared) == (16, 0), "what first tokens do not tell is not told here either"


async def test_logprobs_are_rounded_to_what_the_api_shows(node: Node) -> None:
    node.send(SubmitTokens(1, "ann", (1, 2), SamplingParams(max_tokens=8, logprobs=2, prompt_logprobs=0)))
    submit = await node.service.next(Generate)
    given = TokenLogprob(-1.23456789, ((3, -1.23456789), (4, -float("inf"))))
    node.service.say(
        Accepted(submit.request_id),
        Tokens(submit.request_id, prompt_logprobs=(TokenLogprob(1e-7),)),
        Tokens(submit.request_id, (3,), (given,)),
    )
    scored = await node.frontend.next(Tokens, skip=(Accepted,))
    assert scored.prompt_logprobs == (TokenLogprob(0.0),)
    shown = TokenLogprob(-1.2346, ((3, -1.2346), (4, -9999.0)))
    assert (await node.frontend.next(Tokens)).logprobs == (shown,)


async def test_ending_a_session_ends_its_vault(node: Node) -> None:
    node.ask(1, "mine", keep=True)
    vault = await node.vault(0)
    node.send(EndSession("bob", "mine"))
    node.send(EndSession("ann", "another"))
    await settle()
    assert not vault.gone.is_set()
    node.send(EndSession("ann", "mine"))
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


PREFILLED: dict[str, dict[str, Any]] = {
    "more tokens than asked for": {"max_tokens": 9},
    "more public than there is": {"public": (1, 2, 3)},
    "public tokens of no model": {"public": (1, VOCABULARY)},
    "an origin outside": {"first": {"origin": 4}},
    "a rotation outside": {"first": {"rotation": 1 << 40}},
    "a seed that was not asked for": {"seed": 5},
    "unwanted logprobs": {"first": {"logprob": TokenLogprob(-1.0)}},
}
"""What a vault might say of a prompt of three tokens, for an answer of eight."""


@pytest.mark.parametrize(
    "lie", ["foreign", "first twice", "tokens", "token", "cores twice", "link", "garbage", *PREFILLED]
)
async def test_a_lying_vault_is_ended_and_touches_nobody_else(node: Node, lie: str) -> None:
    node.ask(1, "a")
    node.ask(2, "b", keep=True)
    liar, honest = await node.vault(0), await node.vault(1)
    mine, other = await liar.next(AssignPrompt), await honest.next(AssignPrompt)
    liar.say(PromptAccepted(mine.request_id, 3))
    match lie:
        case "foreign":
            liar.say(PromptAccepted(other.request_id, 3))
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
        case _:
            told = dict(PREFILLED[lie])
            first = replace(FirstToken(1, 0), **told.pop("first", {}))
            liar.say(Prefilled(mine.request_id, (first,), **{"max_tokens": 8, **told}))
    assert (await node.failure()).request_id == 1
    await asyncio.wait_for(liar.gone.wait(), 5)
    honest.say(PromptAccepted(other.request_id, 3), WantCores(3))
    await honest.next(LeaseCores)
    assert (await node.frontend.next(Accepted)).request_id == 2


NOT_ASKED_FOR: dict[str, dict[str, Any]] = {
    "too many tokens": {"tokens": (1,) * 9},
    "unwanted logprobs": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0),)},
    "unwanted scores": {"prompt_logprobs": (TokenLogprob(-1.0),)},
}
WITH_LOGPROBS: dict[str, dict[str, Any]] = {
    "more alternatives": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0, ((1, -1.0), (2, -2.0), (3, -3.0))),)},
    "alternatives of no model": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0, ((VOCABULARY, -1.0),)),)},
    "an alternative twice": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0, ((1, -1.0), (1, -2.0))),)},
    "the likeliest last": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0, ((1, -2.0), (2, -1.0))),)},
    "more than 1 in all": {"tokens": (1,), "logprobs": (TokenLogprob(-0.5, ((1, -0.5), (2, -0.6))),)},
    "more logprobs": {"tokens": (1,), "logprobs": (TokenLogprob(-1.0), TokenLogprob(-1.0))},
    "a positive logprob": {"tokens": (1,), "logprobs": (TokenLogprob(0.5),)},
    "no number": {"tokens": (1,), "logprobs": (TokenLogprob(float("nan")),)},
    "more scores than the prompt has": {"prompt_logprobs": (TokenLogprob(-1.0),) * 3},
}


@pytest.mark.parametrize("lie", [*NOT_ASKED_FOR, *WITH_LOGPROBS])
async def test_a_service_that_says_more_than_was_asked_is_ended(node: Node, lie: str) -> None:
    wants = SamplingParams(max_tokens=8, logprobs=2, prompt_logprobs=1) if lie in WITH_LOGPROBS else PARAMS
    node.send(SubmitTokens(2, "ann", (1, 2, 3), wants))
    submit = await node.service.next(Generate)
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, **{**NOT_ASKED_FOR, **WITH_LOGPROBS}[lie]))
    await asyncio.wait_for(node.service.gone.wait(), 5)
    assert (await node.failure()).code == "service_unavailable"
    assert not [message for message in node.frontend.messages if isinstance(message, Tokens)]


EMBED = SamplingParams(max_tokens=0, embed=True)
VECTOR = struct.pack("<2f", 0.6, 0.8)
NO_EMBEDDINGS: dict[str, dict[str, Any]] = {
    "too long": {"vector": bytes(4) + VECTOR},
    "far too long": {"vector": bytes(8 << 16)},
    "too short": {"vector": VECTOR[:4]},
    "none": {},
    "a length other than 1": {"vector": struct.pack("<2f", 0.6, 0.9)},
    "no number": {"vector": struct.pack("<2f", float("nan"), 0.8)},
    "endless": {"vector": struct.pack("<2f", float("inf"), 0.8)},
    "too early": {"vector": VECTOR, "finish": None},
    "a token, too": {"vector": VECTOR, "tokens": (1,)},
}


@pytest.mark.parametrize("lie", NO_EMBEDDINGS)
async def test_a_service_that_gives_no_embedding_of_this_model_is_ended(node: Node, lie: str) -> None:
    node.send(SubmitTokens(2, "ann", (1, 2, 3), EMBED))
    submit = await node.service.next(Generate)
    node.service.say(
        Accepted(submit.request_id), Tokens(submit.request_id, **{"finish": "length", **NO_EMBEDDINGS[lie]})
    )
    await asyncio.wait_for(node.service.gone.wait(), 5)
    assert (await node.failure()).code == "service_unavailable"


async def test_a_vector_that_was_not_asked_for_ends_the_service(node: Node) -> None:
    node.send(SubmitTokens(2, "ann", (1, 2, 3), PARAMS))
    submit = await node.service.next(Generate)
    node.service.say(Accepted(submit.request_id), Tokens(submit.request_id, (1,), finish="length", vector=VECTOR))
    await asyncio.wait_for(node.service.gone.wait(), 5)
    assert (await node.failure()).code == "service_unavailable"


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
async def test_an_embedding_comes_from_the_vault_alone(node: Node, level: str) -> None:
    node.ask(5, level=level, params=EMBED)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    assert asked.params.embed
    vault.say(PromptAccepted(asked.request_id, 3), Tokens(asked.request_id, finish="length", vector=VECTOR))
    assert await node.frontend.next(Accepted) == Accepted(5, 3)
    assert await node.frontend.next(Tokens) == Tokens(5, finish="length", vector=VECTOR)
    await settle()
    assert not [message for message in node.service.messages if isinstance(message, Generate)]
    assert node.relay.requests.prompt_tokens == 3


@pytest.mark.parametrize("lie", ["tokens", "vector"])
async def test_a_vault_that_lies_about_an_embedding_is_ended(node: Node, lie: str) -> None:
    node.ask(5, params=EMBED if lie == "vector" else PARAMS)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 3), Tokens(asked.request_id, finish="length", vector=bytes(8)))
    assert (await node.failure()).request_id == 5
    await asyncio.wait_for(vault.gone.wait(), 5)


@pytest.mark.parametrize("lie", ["stage", "token", "paused", "stats"])
async def test_a_lying_service_is_ended(node: Node, lie: str) -> None:
    node.ask(1)
    vault = await node.vault(0)
    mine = await vault.next(AssignPrompt)
    node.send(SubmitTokens(2, "ann", (1,), PARAMS))
    submit = await node.service.next(Generate)
    match lie:
        case "stage":
            node.service.say(Tokens(mine.request_id, (1,)))
        case "token":
            node.service.say(Tokens(submit.request_id, (VOCABULARY,)))
        case "paused":
            node.service.say(Paused())
        case "stats":
            node.service.say(Stats())
    await asyncio.wait_for(node.service.gone.wait(), 5)
    assert {(await node.failure()).code for _ in range(2)} == {"service_unavailable"}


async def test_what_the_service_computed_for_whom_reaches_the_turns_of_vaults(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[object] = []
    monkeypatch.setattr(node.relay.core_lease, "paused", heard.append)
    node.relay.from_service(Paused({"ann": 5}))
    assert heard == [{"ann": 5}]


async def test_a_gateway_may_not_speak_of_links(node: Node) -> None:
    order = GeneratePartitioned(1, "ann", (1,), PARAMS, Partition(1, 0, 1))
    with pytest.raises(ProtocolError):
        node.send(order)
    with pytest.raises(ProtocolError):
        node.send(Cancel(1 << 40))
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    with pytest.raises(ProtocolError):
        node.send(SubmitTokens(1, "ann", (1,), PARAMS))


async def test_tokens_before_the_prompt_was_read_end_the_service(node: Node) -> None:
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    submitted = await node.service.next(Generate)
    node.service.say(Tokens(submitted.request_id, (9,)))
    assert (await node.failure()).code == "service_unavailable"


async def test_a_second_sequence_is_not_the_users(node: Node) -> None:
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    submitted = await node.service.next(Generate)
    node.service.say(Accepted(submitted.request_id), Tokens(submitted.request_id, (9,), sequence=1))
    assert (await node.failure()).code == "service_unavailable"


async def test_several_sequences_are_not_for_this_level(node: Node) -> None:
    node.ask(5)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 3), Prefilled(asked.request_id, (FirstToken(1, 0), FirstToken(2, 1)), 8))
    assert (await node.failure()).code == "vault_lost"
    await asyncio.wait_for(vault.gone.wait(), 5)


@pytest.mark.parametrize(("policy", "shares"), [("none", False), ("partition", False), ("global", True)])
def test_which_levels_share_follows_from_their_policies(policy: PolicyName, shares: bool) -> None:
    relay = Relay(ControllerSettings(prefix_policy=policy), 1, nothing_is_sealed, SERVING)
    assert relay.shares("open") is shares
    assert relay.shares("shared")
    assert not any(relay.shares(level) for level in ("partitioned", "obfuscated", "isolated"))
