"""Whose computed prompts a request may find is the controller's word; what is found is checked on its way out."""

from __future__ import annotations

import pytest

from cloister.controller.detector import BlockLabel
from cloister.errors import ProtocolError
from cloister.messages.detector import Category, Label
from cloister.messages.frontend import EndSession, Examine, KeyEntry
from cloister.messages.generation import Accepted, SamplingParams, Submit, Tokens
from cloister.messages.service import Forget
from cloister.messages.service import Label as LabelTokens
from tests.controller.fakes import SERVING, Node

PARAMS = SamplingParams(max_tokens=8)


async def test_a_levels_policy_is_the_controllers_to_say(node: Node) -> None:
    node.send(Submit(1, "ann", (1, 2), PARAMS, salt="s"))
    submit = await node.service.next(Submit)
    assert (submit.policy, submit.salt) == ("none", "s")
    node.send(Submit(2, "ann", (1, 2), PARAMS, level="shared"))
    assert (await node.service.next(Submit)).policy == "safekv"
    with pytest.raises(ProtocolError):
        node.send(Submit(3, "ann", (1, 2), PARAMS, policy="global"))


async def test_at_partitioned_the_service_keeps_public_spans(node: Node) -> None:
    node.ask(5)
    vault = await node.vault(0)
    await vault.serve_first(7, public=(1, 2))
    assert (await node.service.next(Submit)).policy == "system-prompt"


async def test_a_private_end_makes_the_service_forget_this_tenant(node: Node) -> None:
    node.send(EndSession("bob", "any"))
    node.send(EndSession("ann", "any", private=True))
    assert await node.service.next(Forget) == Forget("ann")


async def test_a_tenant_without_a_key_is_forgotten(node: Node) -> None:
    ann, also_ann, bob = (KeyEntry(bytes([n]) * 32, name) for n, name in enumerate(("ann", "ann", "bob")))
    node.relay.admit((ann, also_ann, bob))
    node.relay.admit((ann, bob))
    node.relay.admit((bob,))
    node.relay.admit((ann,))
    assert [await node.service.next(Forget) for _ in range(2)] == [Forget("ann"), Forget("bob")]


@pytest.mark.parametrize("lie", [(3,), (1, 1)])
async def test_a_service_that_found_more_than_there_is_is_ended(node: Node, lie: tuple[int, ...]) -> None:
    node.send(Submit(1, "ann", (1, 2, 3), PARAMS))
    submit = await node.service.next(Submit)
    node.service.say(Accepted(submit.request_id), *(Tokens(submit.request_id, (4,), cached=told) for told in lie))
    assert (await node.failure()).code == "service_unavailable"


PUBLIC, UNCERTAIN, PRIVATE = (
    BlockLabel(each, 1, Category.NONE) for each in (Label.PUBLIC, Label.UNCERTAIN, Label.PRIVATE)
)


@pytest.mark.parametrize(
    ("blocks", "public"),
    [((PUBLIC, PUBLIC), 2), ((PUBLIC, UNCERTAIN, PUBLIC), 1), ((PUBLIC, PRIVATE, PUBLIC), 1)],
)
async def test_what_comes_before_the_first_block_that_is_not_public_may_be_shared(
    node: Node, blocks: tuple[BlockLabel, ...], public: int
) -> None:
    node.relay.labelled(7, blocks)
    assert await node.service.next(LabelTokens) == LabelTokens(7, public * SERVING.block_tokens)


@pytest.mark.parametrize("first", [UNCERTAIN, PRIVATE])
async def test_where_the_first_is_none_nothing_is_said(node: Node, first: BlockLabel) -> None:
    node.relay.labelled(7, (first, PUBLIC))
    node.relay.labelled(8, (PUBLIC,))
    assert (await node.service.next(LabelTokens)).request_id == 8


async def test_a_detector_reads_prompts_of_its_level_and_of_requests_there_are(node: Node) -> None:
    read: list[tuple[str, object]] = []
    node.relay.examine = lambda request_id, text, ends, *, suspicion: read.append((text, ends))
    for message in (
        Submit(1, "ann", (1, 2), PARAMS),
        Examine(1, "open", (4,)),
        Submit(2, "ann", (1, 2), PARAMS, level="shared"),
        Examine(2, "shared", (6,)),
        Examine(3, "nobody asked", (12,)),
    ):
        node.send(message)
    assert read == [("shared", (6,))]
