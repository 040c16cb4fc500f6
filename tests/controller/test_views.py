"""The last view of a request outlives it for a moment: without it, what a user sees would lack the last words."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.controller import views
from cloister.messages.controller_detector import Labels
from cloister.messages.controller_frontend import Ask, AskView, EndSession, SubmitTokens, View
from cloister.messages.controller_service import Generate
from cloister.messages.controller_vault import (
    AssignPrompt,
    CoresDone,
    FirstToken,
    LeaseCores,
    Prefilled,
    PromptAccepted,
    WantCores,
)
from cloister.messages.generation import Accepted, Cancel, Failed, Tokens
from cloister.messages.prompts import ObfuscationParams
from cloister.messages.types import SamplingParams
from tests.controller.fakes import PARAMS, Inbox, Node
from tests.controller.test_relay import settle


async def view_of(node: Node, request_id: int = 5) -> View:
    node.send(AskView(request_id))
    return await node.frontend.next(View, skip=(Accepted, Tokens, Failed))


async def begin(node: Node, level: Any, *, keep: bool = False) -> int:
    """A request that the service decodes; its number there. At `partitioned` the vault's first token is 7."""
    if level in ("open", "shared"):
        node.send(SubmitTokens(5, "ann", (1, 2, 3), PARAMS, level=level))
    else:
        node.ask(5, level=level, keep=keep)
        await (await node.vault(0)).serve_first(7)
    return (await node.service.next(Generate)).request_id


@pytest.mark.parametrize("level", ["open", "shared", "partitioned"])
async def test_the_view_after_the_end_has_the_last_tokens(node: Node, level: str) -> None:
    number = await begin(node, level)
    node.service.say(Accepted(number), Tokens(number, (8,)))
    first = (7,) if level == "partitioned" else ()
    await settle()
    assert (await view_of(node)).output == (*first, 8)
    node.service.say(Tokens(number, (9, 10), finish="stop"))
    await settle()
    assert len(node.relay.requests) == 0
    assert (await view_of(node)).output == (*first, 8, 9, 10)
    assert (await view_of(node)).output == (*first, 8, 9, 10), "to ask changes nothing"


@pytest.mark.parametrize("level", ["open", "shared"])
async def test_nothing_of_a_prompt_that_the_service_was_given_whole_is_kept(node: Node, level: str) -> None:
    number = await begin(node, level)
    request = node.relay.requests.get(number)
    assert request is not None
    request.labels = Labels(number, b"\2", b"\2", b"\xff")
    node.service.say(Accepted(number), Tokens(number, (8,), cached=2, shared=2))
    await settle()
    assert (await view_of(node)).prompt == (1, 2, 3)
    node.service.say(Tokens(number, (9,), finish="stop"))
    await settle()
    assert await view_of(node) == View(5, True, output=(8, 9), layers=2)


async def test_what_was_marked_public_for_the_service_is_kept_with_the_answer(node: Node) -> None:
    node.ask(5)
    await (await node.vault(0)).serve_first(7, public=(1, 2))
    number = (await node.service.next(Generate)).request_id
    node.service.say(Accepted(number), Tokens(number, (8,), finish="stop"))
    await settle()
    view = await view_of(node)
    assert (view.prompt, view.output, view.answered_rows) == ((1, 2), (7, 8), 2)


async def test_the_view_after_the_end_has_the_last_tokens_of_all_streams(node: Node) -> None:
    node.send(Ask(5, "ann", "obfuscated", "s", False, b"prompt", PARAMS, obfuscation=ObfuscationParams(fakes=2)))
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 40, 3), WantCores(40))
    await vault.next(LeaseCores)
    firsts = tuple(FirstToken(token=7 + at, slot=3 + at) for at in range(3))
    vault.say(CoresDone(), Prefilled(asked.request_id, firsts, max_tokens=8))
    number = (await node.service.next(Generate)).request_id
    for at in range(3):
        node.service.say(Tokens(number, (20 + at,), sequence=at, finish="stop" if at == 2 else None))
    await settle()
    assert len(node.relay.requests) == 0
    assert (await view_of(node)).streams == ((7, 20), (8, 21), (9, 22))


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_an_answer_that_was_cut_leaves_what_there_was(node: Node, how: str) -> None:
    number = await begin(node, "partitioned")
    node.service.say(Accepted(number), Tokens(number, (8,)))
    await settle()
    if how == "cancelled":
        node.send(Cancel(5))
    else:
        node.service.say(Failed(number, "service_unavailable", "no"))
        await settle()
    assert len(node.relay.requests) == 0
    assert (await view_of(node)).output == (7, 8)


async def test_at_isolated_there_is_nothing_to_keep(node: Node) -> None:
    node.ask(5, level="isolated")
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    vault.say(PromptAccepted(asked.request_id, 40), Tokens(asked.request_id, (8,), finish="stop"))
    await settle()
    assert len(node.relay.requests) == 0
    assert not (await view_of(node)).known


async def test_a_last_view_is_gone_after_a_moment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "KEPT_S", 0.0)
    number = await begin(node, "partitioned")
    node.service.say(Accepted(number), Tokens(number, (8,), finish="stop"))
    await settle()
    assert not (await view_of(node)).known
    assert not node.relay.views._last and not node.relay.views._tokens, "and not only hidden"


async def test_whoever_ends_a_session_ends_its_views(node: Node) -> None:
    number = await begin(node, "partitioned", keep=True)
    node.service.say(Accepted(number), Tokens(number, (8,), finish="stop"))
    await settle()
    node.send(EndSession("bob", "s"))
    node.send(EndSession("ann", "another"))
    assert (await view_of(node)).known
    node.send(EndSession("ann", "s"))
    assert not (await view_of(node)).known


async def test_a_tenant_that_is_to_be_forgotten_leaves_no_views(node: Node) -> None:
    number = await begin(node, "open")
    node.service.say(Accepted(number), Tokens(number, (8,), finish="stop"))
    await settle()
    node.send(EndSession("bob", "s", private=True))
    assert (await view_of(node)).known
    node.send(EndSession("ann", "s", private=True))
    assert not (await view_of(node)).known


async def test_a_frontend_that_is_gone_leaves_no_views(node: Node) -> None:
    other = node.add_gateway(Inbox())
    node.relay.from_frontend(other, SubmitTokens(6, "ann", (1, 2), PARAMS))
    await node.service.next(Generate)
    node.relay.remove_frontend(other)
    assert len(node.relay.requests) == 0
    assert not node.relay.views._last


async def test_last_views_take_no_more_than_their_room(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_TOKENS", 2)
    for request_id in (5, 6, 7):
        node.send(SubmitTokens(request_id, "ann", (1, 2, 3), SamplingParams(max_tokens=8)))
        number = (await node.service.next(Generate)).request_id
        node.service.say(Accepted(number), Tokens(number, (8,), finish="stop"))
        await settle()
    assert [(await view_of(node, request_id)).known for request_id in (5, 6, 7)] == [False, True, True]
