"""The way of `obfuscated`: several sequences of one request, none of which anybody is told is the real one."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec.structs import replace

from cloister.controller.requests import InStep
from cloister.messages.controller_frontend import Ask, AskView, View
from cloister.messages.controller_service import GenerateVariants
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FirstToken,
    LeaseCores,
    Prefilled,
    PromptAccepted,
    Release,
    WantCores,
)
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.prompts import ObfuscationParams
from tests.controller.fakes import PARAMS, FakeVault, Node

FIRSTS = tuple(FirstToken(token=7 + at, slot=3 + at) for at in range(4))


def ask(node: Node, **wish: int) -> None:
    params = ObfuscationParams(**{"fakes": 3, **wish})  # type: ignore[arg-type]
    node.send(Ask(1, "ann", "obfuscated", "s", False, b"prompt", PARAMS, obfuscation=params))


async def begun(node: Node, sequences: int = 4, firsts: tuple[FirstToken, ...] = FIRSTS) -> FakeVault:
    """A vault that has prefilled as many sequences as it says."""
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    assert asked.obfuscation is not None and asked.obfuscation.fakes == 3
    vault.say(PromptAccepted(asked.request_id, 40, sequences), WantCores(40))
    await vault.next(LeaseCores)
    vault.say(CoresDone(), Prefilled(asked.request_id, firsts, max_tokens=8))
    return vault


async def test_all_sequences_go_one_way_and_end_together(node: Node) -> None:
    ask(node)
    vault = await begun(node)
    submitted = await node.service.next(GenerateVariants)
    assert [(one.slot, one.first) for one in submitted.partitions] == [(3, 7), (4, 8), (5, 9), (6, 10)]
    assert await node.frontend.next(Accepted) == Accepted(1, 40, 4)
    firsts = [await node.frontend.next(Tokens) for _ in range(4)]
    assert [(one.sequence, one.tokens, one.finish) for one in firsts] == [(at, (7 + at,), None) for at in range(4)]
    number = submitted.request_id
    for at in range(4):
        node.service.say(Tokens(number, (20 + at,), sequence=at, finish="stop" if at == 3 else None))
    told = [await node.frontend.next(Tokens) for _ in range(3)]
    assert [one.sequence for one in told] == [0, 1, 2]
    node.send(AskView(1))
    assert await node.frontend.next(Tokens) == Tokens(1, (23,), sequence=3, finish="stop")
    await vault.next(Release)
    assert len(node.relay.requests) == 0


async def test_the_view_shows_all_streams_and_no_answer(node: Node) -> None:
    ask(node)
    await begun(node)
    submitted = await node.service.next(GenerateVariants)
    node.service.say(*(Tokens(submitted.request_id, (20 + at,), sequence=at) for at in (2, 0, 1, 3)))
    for _ in range(8):
        await node.frontend.next(Tokens, skip=(Accepted,))
    node.send(AskView(1))
    view = await node.frontend.next(View)
    assert view.output == () and view.streams == ((7, 20), (8, 21), (9, 22), (10, 23))
    node.send(Cancel(1))
    assert (await node.service.next(Cancel)).request_id == submitted.request_id, "one cancel for all"


async def test_the_failure_of_one_is_the_failure_of_all(node: Node) -> None:
    ask(node)
    await begun(node)
    submitted = await node.service.next(GenerateVariants)
    node.service.say(Failed(submitted.request_id, "service_unavailable", "no"))
    assert (await node.failure()).code == "service_unavailable"
    assert len(node.relay.requests) == 0


@pytest.mark.parametrize(
    "firsts",
    [
        FIRSTS[:3],
        (*FIRSTS[:3], replace(FIRSTS[3], slot=3)),
        (*FIRSTS[:3], replace(FIRSTS[3], finish="stop")),
    ],
    ids=["not-as-said", "one-slot", "one-ends"],
)
async def test_a_vault_whose_sequences_are_not_alike_is_ended(node: Node, firsts: tuple[FirstToken, ...]) -> None:
    ask(node)
    await begun(node, 4, firsts)
    assert (await node.failure()).code == "vault_lost"


@pytest.mark.parametrize("sequences", [1, 3, 5])
async def test_a_vault_that_hides_it_among_fewer_or_more_than_was_asked_is_ended(node: Node, sequences: int) -> None:
    ask(node)
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 40, sequences))
    assert (await node.failure()).code == "vault_lost"


async def test_a_vault_may_hide_it_among_as_few_as_the_user_allowed(node: Node) -> None:
    ask(node, minimum=2)
    await begun(node, 3, FIRSTS[:3])
    assert len((await node.service.next(GenerateVariants)).partitions) == 3


async def test_a_service_that_cuts_one_stream_short_is_ended(node: Node) -> None:
    ask(node)
    await begun(node)
    submitted = await node.service.next(GenerateVariants)
    node.service.say(Tokens(submitted.request_id, (20,), sequence=0, finish="stop"))
    await node.service.gone.wait()


# ---- the service as an adversary: it stops one stream and watches what is heard of the others


async def heard(node: Node, stopped: int) -> list[int]:
    """How many tokens of each stream get out while the service holds one of them back."""
    ask(node)
    await begun(node)
    number = (await node.service.next(GenerateVariants)).request_id
    for _ in range(4):
        await node.frontend.next(Tokens, skip=(Accepted,))
    others = [at for at in range(4) if at != stopped]
    for step in range(3):
        node.service.say(*(Tokens(number, (20 + step,), sequence=at) for at in others))
    request = node.relay.requests.get(number)
    assert request is not None
    async with asyncio.timeout(5):
        while any(len(request.made[at]) < 4 for at in others):
            await asyncio.sleep(0.001)
    count = [0] * 4
    node.send(AskView(1))
    while not isinstance(message := await node.frontend.next(msgspec.Struct), View):
        assert isinstance(message, Tokens)
        count[message.sequence] += len(message.tokens)
    return count


@pytest.mark.parametrize("stopped", range(4))
async def test_a_service_that_stops_one_stream_stops_all(node: Node, stopped: int) -> None:
    """What the user hears is the same whichever stream is the user's."""
    assert await heard(node, stopped) == [0] * 4
    number = next(iter(node.relay.requests)).request_id
    node.service.say(Tokens(number, (20, 21, 22), sequence=stopped))
    told = [await node.frontend.next(Tokens) for _ in range(10)]
    for at in range(4):
        assert [token for one in told if one.sequence == at for token in one.tokens] == [20, 21, 22]


@pytest.mark.parametrize("stopped", range(4))
async def test_out_of_step_the_same_service_sees_whose_stream_it_stopped(
    node: Node, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InStep, "passed", lambda step, message: [message])
    assert [at for at, count in enumerate(await heard(node, stopped)) if not count] == [stopped]
