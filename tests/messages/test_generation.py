"""The shapes requests may have: labelled spans, several sequences."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.messages.controller_vault import FirstToken, FromVault, Prefilled
from cloister.messages.generation import Submit, Tokens
from cloister.messages.types import MAX_SEQUENCES, MAX_SPANS, Partition, SamplingParams, Span, label_spans

PARAMS = SamplingParams()


def passed(message: msgspec.Struct, union: Any) -> msgspec.Struct:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=union)


@given(public=st.integers(0, 9), private=st.integers(0, 9), answer=st.integers(0, 9))
def test_labelled_spans_cover_the_prompt_and_say_what_is_public_and_what_is_answered(
    public: int, private: int, answer: int
) -> None:
    length = public + private + answer
    submit = Submit(1, "t", tuple(range(length)), PARAMS, label_spans(length, public=public, answer=answer))
    assert sum(span.tokens for span in submit.spans) == length
    assert (submit.public, submit.answered, submit.partition) == (public, answer, None)
    assert passed(submit, Submit) == submit


def test_the_shapes_of_todays_levels() -> None:
    whole = Submit(1, "t", (1, 2, 3), PARAMS)
    parted = Submit(1, "t", (1, 2), PARAMS, label_spans(2, public=2), (Partition(4, 3, 9),))
    private = Submit(1, "t", (), PARAMS, partitions=(Partition(4, 3, 9),))
    for submit in (whole, parted, private):
        assert passed(submit, Submit) == submit
    assert (parted.public, parted.partition) == (2, Partition(4, 3, 9)) and private.public == 0
    prefilled = Prefilled(1, (FirstToken(7, 3),), max_tokens=8, public=(1, 2))
    assert passed(prefilled, FromVault) == prefilled


def test_one_request_may_have_many_sequences_and_its_tokens_say_whose_they_are() -> None:
    prefilled = Prefilled(1, tuple(FirstToken(7, slot) for slot in range(MAX_SEQUENCES)), max_tokens=8)
    assert passed(prefilled, FromVault) == prefilled
    submit = Submit(1, "t", (), PARAMS, partitions=tuple(Partition(1, slot, 7) for slot in range(MAX_SEQUENCES)))
    assert passed(submit, Submit) == submit
    assert passed(Tokens(1, (5,), sequence=MAX_SEQUENCES - 1), Tokens) == Tokens(1, (5,), sequence=MAX_SEQUENCES - 1)


@pytest.mark.parametrize(
    ("message", "union"),
    [
        (Prefilled(1, (), max_tokens=8), FromVault),
        (Prefilled(1, (FirstToken(7, 0),) * (MAX_SEQUENCES + 1), max_tokens=8), FromVault),
        (Prefilled(1, (FirstToken(7, 1024),), max_tokens=8), FromVault),
        (Submit(1, "t", (), PARAMS, partitions=(Partition(1, 0, 7),) * (MAX_SEQUENCES + 1)), Submit),
        (Submit(1, "t", (1,), PARAMS, (Span("private", 1),) * (MAX_SPANS + 1)), Submit),
        (Submit(1, "t", (1,), PARAMS, (Span("secret", 1),)), Submit),  # type: ignore[arg-type]
        (Submit(1, "t", (1,), PARAMS, (Span("public", 0),)), Submit),
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
        Submit(1, "t", (secret,), PARAMS, partitions=(Partition(1, 0, 7),)),
        Tokens(1, (secret,)),
        FirstToken(secret, 0),
    ):
        assert str(secret) not in repr(message)
