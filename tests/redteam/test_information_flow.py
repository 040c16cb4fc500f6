"""A service that wants to tell somebody what it knows has tokens and numbers to say it with, and no text.

The relay is the real one; the service, the vaults and the gateway are played over real sockets.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import get_args, get_type_hints

import pytest

from cloister.errors import CloisterError, VaultLost
from cloister.levels import PolicyName
from cloister.messages.controller_frontend import SubmitTokens, View
from cloister.messages.controller_gateway import FromGateway, ToGateway
from cloister.messages.controller_service import FromSealedService, Generate
from cloister.messages.controller_vault import AssignPrompt, PromptAccepted
from cloister.messages.generation import Accepted, Failed, Tokens
from cloister.messages.types import SamplingParams
from cloister.prefix.base import POLICIES
from tests.controller.fakes import Node

SECRET = "what_another_user_said"
PARAMS = SamplingParams(max_tokens=8)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = await Node.build(spare_vaults=0)
    yield node
    node.close()


def codes() -> list[str]:
    kinds, found = [CloisterError], []
    while kinds:
        kind = kinds.pop()
        found.append(kind.code)
        kinds += kind.__subclasses__()
    return sorted({*found, SECRET})


@pytest.mark.parametrize("code", codes())
async def test_text_of_the_service_reaches_nobody(node: Node, code: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    submit = await node.service.next(Generate)
    node.service.say(Failed(submit.request_id, code, SECRET, retry_after=123456789, param=SECRET))
    told = await node.failure()
    assert told.message and SECRET not in (told.code, told.message, told.param) and told.retry_after <= 60
    assert SECRET not in caplog.text


@pytest.mark.parametrize("reason", ["vault_lost", "vault_timeout", "link_malformed"])
async def test_why_a_vault_was_lost_is_told(node: Node, reason: str) -> None:
    """Words that are ours to the letter say more, and no more than a number would."""
    node.send(SubmitTokens(1, "ann", (1,), PARAMS))
    submit = await node.service.next(Generate)
    ours = str(VaultLost.because(reason))
    node.service.say(Failed(submit.request_id, "vault_lost", ours, param=SECRET))
    told = await node.failure()
    assert told.message == ours and told.param is None


async def test_a_view_of_the_services_own_making_ends_it_and_not_the_gateway(node: Node) -> None:
    """Views are of what the controller passed on; in the service's hands they could hold anything."""
    node.ask(1, level="isolated")
    vault = await node.vault(0)
    asked = await vault.next(AssignPrompt)
    node.service.say(View(asked.request_id, known=True, prompt=(1, 2, 3)))
    await asyncio.wait_for(node.service.gone.wait(), 5)
    vault.say(PromptAccepted(asked.request_id, 3), Tokens(asked.request_id, (4,), finish="stop"))
    await node.frontend.next(Accepted)
    assert (await node.frontend.next(Tokens)).tokens == (4,)


def test_no_message_of_the_service_has_text_but_what_is_replaced_or_said_before_any_request() -> None:
    """A field of text that is added later must be thought about here."""
    texts = {
        f"{message.__name__}.{name}"
        for message in FromSealedService.__args__
        for name, kind in get_type_hints(message, include_extras=True).items()
        if re.search(r"\b(str|bytes)\b", str(kind))
    }
    replaced, before_any_request = (
        {"Failed.code", "Failed.message", "Failed.param"},
        {*("Ready.kernels", "Ready.lacks", "StartFailed.code", "StartFailed.message", "StartFailed.hint")},
    )
    tenants = {"Paused.charged"}  # charges go to vaults' turns alone
    numbers = {"Tokens.vector"}  # of the width that was announced and of length 1, where it was asked for
    assert texts == replaced | before_any_request | tenants | numbers
    assert set(get_args(PolicyName)) == set(POLICIES)
    assert View not in FromSealedService.__args__ and View in ToGateway.__args__ and View not in FromGateway.__args__
