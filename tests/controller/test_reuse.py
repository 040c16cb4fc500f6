"""Whose computed prompts a request may find is the controller's word; what is found is checked on its way out."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.controller.routes import open as open_route
from cloister.errors import ProtocolError
from cloister.levels import PolicyName
from cloister.messages.controller_detector import Category, Label, Labels
from cloister.messages.controller_frontend import EndSession, KeyEntry, SubmitTokens
from cloister.messages.controller_service import ForgetTenant, Generate, GeneratePrompt
from cloister.messages.controller_service import PublicPrefix as LabelTokens
from cloister.messages.generation import Accepted, Cancel, Tokens
from cloister.messages.types import ExtraAnswer, SamplingParams
from cloister.service.process import request_of
from tests.controller.fakes import SERVING, Node

PARAMS = SamplingParams(max_tokens=8)


async def test_a_levels_policy_is_the_controllers_to_say(node: Node) -> None:
    node.send(SubmitTokens(1, "ann", (1, 2), PARAMS, salt="s"))
    submit = await node.service.next(Generate)
    assert (submit.policy, submit.salt) == ("none", "s")
    node.send(SubmitTokens(2, "ann", (1, 2), PARAMS, level="shared"))
    assert (await node.service.next(Generate)).policy == "counted"
    with pytest.raises(ProtocolError):
        node.send(GeneratePrompt(3, "ann", (1, 2), PARAMS, policy="global"))


async def test_at_partitioned_the_service_keeps_public_spans(node: Node) -> None:
    node.ask(5)
    vault = await node.vault(0)
    await vault.serve_first(7, public=(1, 2))
    assert request_of(await node.service.next(Generate)).policy == "partition", "for its tenant alone"


async def test_a_private_end_makes_the_service_forget_this_tenant(node: Node) -> None:
    node.send(EndSession("bob", "any"))
    node.send(EndSession("ann", "any", private=True))
    assert await node.service.next(ForgetTenant) == ForgetTenant("ann")


async def test_a_tenant_without_a_key_is_forgotten(node: Node) -> None:
    ann, also_ann, bob = (KeyEntry(bytes([n]) * 32, name) for n, name in enumerate(("ann", "ann", "bob")))
    node.relay.admit((ann, also_ann, bob))
    node.relay.admit((ann, bob))
    node.relay.admit((bob,))
    node.relay.admit((ann,))
    assert [await node.service.next(ForgetTenant) for _ in range(2)] == [ForgetTenant("ann"), ForgetTenant("bob")]


@pytest.mark.parametrize("lie", [(3,), (1, 1)])
async def test_a_service_that_found_more_than_there_is_is_ended(node: Node, lie: tuple[int, ...]) -> None:
    node.send(SubmitTokens(1, "ann", (1, 2, 3), PARAMS))
    submit = await node.service.next(Generate)
    node.service.say(Accepted(submit.request_id), *(Tokens(submit.request_id, (4,), cached=told) for told in lie))
    assert (await node.failure()).code == "service_unavailable"


PUBLIC, UNCERTAIN, PRIVATE = Label.PUBLIC, Label.UNCERTAIN, Label.PRIVATE


def found(request_id: int, *blocks: Label) -> Labels:
    return Labels(request_id, bytes(blocks), b"\1" * len(blocks), bytes([Category.NONE]) * len(blocks))


@pytest.mark.parametrize(
    ("blocks", "public"),
    [((PUBLIC, PUBLIC), 2), ((PUBLIC, UNCERTAIN, PUBLIC), 1), ((PUBLIC, PRIVATE, PUBLIC), 1)],
)
async def test_what_comes_before_the_first_block_that_is_not_public_may_be_shared(
    node: Node, blocks: tuple[Label, ...], public: int
) -> None:
    read: list[int] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append(request_id)
    examine(node, 7)
    node.relay.shared.labelled(found(read[0], *blocks))
    await node.service.next(Generate)
    assert await node.service.next(LabelTokens) == LabelTokens(read[0], public * SERVING.block_tokens)


@pytest.mark.parametrize("first", [UNCERTAIN, PRIVATE])
async def test_where_the_first_is_none_nothing_may_be_shared(node: Node, first: Label) -> None:
    read: list[int] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append(request_id)
    examine(node, 7)
    node.relay.shared.labelled(found(read[0], first, PUBLIC))
    await node.service.next(Generate)
    assert await node.service.next(LabelTokens) == LabelTokens(read[0], 0)


PROMPT = (*range(48),)


def examine(node: Node, *numbers: int, **fields: Any) -> None:
    """Requests with the same prompt at `shared`, and their text for a detector."""
    also = tuple(ExtraAnswer(number, number) for number in numbers[1:])
    text: dict[str, Any] = {"also": also, "text": "text", "ends": (4,)}
    node.send(SubmitTokens(numbers[0], "ann", PROMPT, PARAMS, level="shared", **text, **fields))


async def test_at_shared_a_request_waits_for_its_own_label_and_is_served_with_it(node: Node) -> None:
    """What it may find of others' ends where its own public part does, so that must be known first."""
    read: list[int] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append(request_id)
    examine(node, 1, 2, 3)
    node.send(SubmitTokens(4, "bob", (1, 2), PARAMS))
    assert (await node.service.next(Generate)).tenant == "bob", "the others wait"
    node.relay.shared.labelled(found(read[0], PUBLIC))
    for _ in range(3):
        submit = await node.service.next(Generate)
        assert await node.service.next(LabelTokens) == LabelTokens(submit.request_id, SERVING.block_tokens)


@pytest.mark.parametrize("why", ["late", "no detector", "salt", "nothing to read", "forgotten"])
async def test_a_request_whose_text_is_not_read_finds_nothing_of_others(
    node: Node, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_route, "PATIENCE_S", 0.01 if why == "late" else 3600.0)
    if why != "no detector":
        node.relay.shared.examine = lambda request_id, text, ends: None
    if why == "nothing to read":
        node.send(SubmitTokens(1, "ann", PROMPT, PARAMS, level="shared"))
    else:
        examine(node, 1, salt="s" if why == "salt" else "")
    if why == "forgotten":
        node.send(EndSession("ann", "any", private=True))
    submit = await node.service.next(Generate)
    assert submit.policy == "counted"
    if why != "salt":
        assert (await node.service.next(LabelTokens)).public_tokens == 0
    if why == "forgotten":
        assert await node.service.next(ForgetTenant) == ForgetTenant("ann"), "after what it has to forget"


async def test_a_request_that_is_cancelled_while_it_waits_never_reaches_the_service(node: Node) -> None:
    read: list[int] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append(request_id)
    examine(node, 1)
    node.send(Cancel(1))
    node.relay.shared.labelled(found(read[0], PUBLIC))
    node.send(SubmitTokens(2, "bob", (1, 2), PARAMS))
    assert (await node.service.next(Generate, skip=(LabelTokens,))).tenant == "bob"
    assert not node.relay.shared._held


async def test_a_detector_reads_prompts_of_its_level_that_come_with_a_text(node: Node) -> None:
    read: list[tuple[str, object]] = []
    node.relay.shared.examine = lambda request_id, text, ends: read.append((text, ends))
    for message in (
        SubmitTokens(1, "ann", (1, 2), PARAMS, text="open", ends=(4,)),
        SubmitTokens(2, "ann", (1, 2), PARAMS, level="shared", text="shared", ends=(6,)),
        SubmitTokens(3, "ann", (1, 2), PARAMS, level="shared"),
    ):
        node.send(message)
    assert read == [("shared", (6,))]


@pytest.mark.parametrize(("policy", "public"), [("counted", 16), ("registered", 0)])
async def test_without_a_detector_a_request_is_labelled_at_once(policy: PolicyName, public: int) -> None:
    settings = {"shared_policy": policy, "share_threshold": 0, "share_epsilon": 1e9, "detector": False}
    node = await Node.build(spare_vaults=0, **settings)
    for number in (1, 2):  # one vote is more than 0; the second is another account's
        node.send(SubmitTokens(number, "ab"[number - 1], tuple(range(20)), PARAMS, level="shared", ends=(20,)))
        submit = await node.service.next(Generate)
        assert submit.policy == policy
        assert (await node.service.next(LabelTokens)) == LabelTokens(submit.request_id, public)
    node.close()
