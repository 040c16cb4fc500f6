"""The shapes requests may have: a whole prompt, one partition, several sequences; each message has its own fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cloister.messages.controller_frontend import SubmitTokens
from cloister.messages.controller_gateway import FromGateway
from cloister.messages.controller_sealed_api import FromSealedApi
from cloister.messages.controller_service import (
    Generate,
    GeneratePartitioned,
    GeneratePrompt,
    GenerateVariants,
    ToSealedService,
)
from cloister.messages.controller_vault import FirstToken, FromVault, Prefilled
from cloister.messages.generation import Tokens
from cloister.messages.types import MAX_SEQUENCES, Partition, SamplingParams

PARAMS = SamplingParams()
PART = Partition(4, 3, 9)
ORDERS = (
    GeneratePrompt(1, "t", (1, 2, 3), PARAMS, public=2),
    GeneratePartitioned(1, "t", (1, 2), PARAMS, PART),
    GeneratePartitioned(1, "t", (), PARAMS, PART),
    GenerateVariants(1, "t", (), PARAMS, (PART, Partition(4, 5, 9))),
)


def passed(message: msgspec.Struct, union: Any) -> msgspec.Struct:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_the_service_gets_a_whole_prompt_or_a_partition_or_variants(order: Generate) -> None:
    assert passed(order, ToSealedService) == order


@pytest.mark.parametrize("frontend", [FromGateway, FromSealedApi], ids=["gateway", "sealed API"])
@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_frontend_cannot_order_the_service_about(order: Generate, frontend: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        passed(order, frontend)


@pytest.mark.parametrize("field", [{"policy": "global"}, {"partitions": [PART]}], ids=str)
def test_a_frontend_chooses_no_policy_and_no_link(field: dict[str, Any]) -> None:
    submit = {"type": "SubmitTokens", "request_id": 1, "tenant": "t", "prompt": (1,), "params": PARAMS}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(submit), type=FromGateway) == SubmitTokens(
        1, "t", (1,), PARAMS
    )
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(submit | field), type=FromGateway)


def test_one_request_may_have_many_sequences_and_its_tokens_say_whose_they_are() -> None:
    prefilled = Prefilled(1, tuple(FirstToken(7, slot) for slot in range(MAX_SEQUENCES)), max_tokens=8)
    assert passed(prefilled, FromVault) == prefilled
    order = GenerateVariants(1, "t", (), PARAMS, tuple(Partition(1, slot, 7) for slot in range(MAX_SEQUENCES)))
    assert passed(order, Generate) == order
    assert passed(Tokens(1, (5,), sequence=MAX_SEQUENCES - 1), Tokens) == Tokens(1, (5,), sequence=MAX_SEQUENCES - 1)


@pytest.mark.parametrize(
    ("message", "union"),
    [
        (Prefilled(1, (), max_tokens=8), FromVault),
        (Prefilled(1, (FirstToken(7, 0),) * (MAX_SEQUENCES + 1), max_tokens=8), FromVault),
        (Prefilled(1, (FirstToken(7, 1024),), max_tokens=8), FromVault),
        (GenerateVariants(1, "t", (), PARAMS, (PART,) * (MAX_SEQUENCES + 1)), Generate),
        (GenerateVariants(1, "t", (), PARAMS, (PART,)), Generate),
        (GeneratePrompt(1, "t", (-1,), PARAMS), Generate),
        (GeneratePrompt(1, "t", (1,), PARAMS, public=-1), Generate),
        (SubmitTokens(1, "t", (1,), PARAMS, public=2**21), FromGateway),
        (Tokens(1, (5,), sequence=MAX_SEQUENCES), Tokens),
    ],
)
def test_what_is_out_of_bounds_does_not_decode(message: msgspec.Struct, union: Any) -> None:
    with pytest.raises(msgspec.ValidationError):
        passed(message, union)


def test_no_message_shows_tokens_when_it_is_printed() -> None:
    secret = 424242
    for message in (
        Prefilled(1, (FirstToken(secret, 0),), max_tokens=8, public=(secret,)),
        SubmitTokens(1, "t", (secret,), PARAMS),
        GeneratePrompt(1, "t", (secret,), PARAMS),
        GeneratePartitioned(1, "t", (secret,), PARAMS, Partition(1, 0, secret)),
        GenerateVariants(1, "t", (secret,), PARAMS, (Partition(1, 0, secret),) * 2),
        Tokens(1, (secret,)),
        FirstToken(secret, 0),
    ):
        assert str(secret) not in repr(message)
