"""A sealed prompt is opened in its vault: the same tokens as in the clear, typed refusals, and no key left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from cloister.channel.sealing import ChannelKey, address_to, seal_prompt
from cloister.grammar import compiled
from cloister.messages.controller_vault import AssignPrompt, Prefilled, PromptAccepted, ToVault
from cloister.messages.frames import FrameReader, encode_frame
from cloister.messages.generation import Failed
from cloister.messages.prompts import (
    ChatPrompt,
    LockedPrompt,
    ObfuscationSecrets,
    PromptField,
    PromptMessage,
    TextPrompt,
    TokenPrompt,
)
from cloister.messages.types import SamplingParams
from tests.vault.node import SETTINGS, ByteTokenizer, Room

SECRET = "nobody else may read this"
TAGGED = f"public <confidential>{SECRET}</confidential>"


def locked(field: PromptField, given: Any, index: int = 0, **instead: Any) -> LockedPrompt:
    """Sealed as a client does, opened with what the node derives."""
    node = ChannelKey.generate()
    enc, keys = address_to(node.public)
    written = given if isinstance(given, bytes) else json.dumps(given).encode()
    data = seal_prompt(keys.prompt, enc, index, written)
    return LockedPrompt(**{"data": data, "key": node.accept(enc).prompt, "enc": enc, "index": index, "field": field}
                        | instead)  # fmt: skip


SAME = [
    ("messages", [{"role": "user", "content": SECRET}], ChatPrompt((PromptMessage("user", SECRET),))),
    (
        "messages",
        [{"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ChatPrompt((PromptMessage("developer", "ab"),)),
    ),
    ("prompt", TAGGED, TextPrompt(TAGGED)),
    ("prompt", {"text": TAGGED, "public": True}, TextPrompt(TAGGED, True)),
    (
        "messages",
        [{"role": "system", "content": "Be kind.", "public": True}, {"role": "user", "content": SECRET}],
        ChatPrompt((PromptMessage("system", "Be kind.", True), PromptMessage("user", SECRET))),
    ),
    ("prompt", [7, 8, 9], TokenPrompt((7, 8, 9))),
]  # fmt: skip


@pytest.mark.parametrize("level", ["partitioned", "isolated"])
@pytest.mark.parametrize(("field", "given", "plain"), SAME)
def test_sealed_and_plain_prompts_are_read_alike(room: Room, field: PromptField, given: Any, plain: Any, level: Any):
    assert isinstance(room.confide(1, plain, level), PromptAccepted)
    room.serve()
    sealed = room.confide(2, locked(field, given, index=3), level)
    assert isinstance(sealed, PromptAccepted)
    room.serve()
    if level == "partitioned":
        first, second = room.first(1), room.first(2)
        assert (first.token, first.public) == (second.token, second.public)
    else:
        assert room.answer(1) == room.answer(2) != []


def test_the_key_is_overwritten_once_it_was_used_or_tried(room: Room) -> None:
    good, bad = locked("prompt", SECRET), locked("prompt", SECRET, key=bytearray(b"k" * 32))
    assert isinstance(room.confide(1, good), PromptAccepted)
    assert isinstance(room.confide(2, bad), Failed)
    assert good.key == bad.key == bytes(32)


def altered(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("what", ["key", "enc", "index", "data", "cut", "empty"])
def test_what_does_not_open_is_refused_without_a_word_of_it(room: Room, what: str) -> None:
    right = locked("prompt", SECRET)
    wrong = {
        "key": {"key": bytearray(b"k" * 32)},
        "enc": {"enc": altered(right.enc)},
        "index": {"index": 1},
        "data": {"data": altered(right.data)},
        "cut": {"data": right.data[:-16]},
        "empty": {"data": b""},
    }[what]
    fields = {name: getattr(right, name) for name in ("data", "key", "enc", "index", "field")}
    failed = room.confide(1, LockedPrompt(**{**fields, **wrong}))
    assert isinstance(failed, Failed) and failed.code == "channel_broken" and failed.param is None
    assert not room.wants_cores


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("messages", "hello", "messages: Input should be a valid array."),
        ("messages", [], "messages: List should have at least 1 item after validation, not 0."),
        ("messages", [{"role": "user", "content": "a"}, {"role": SECRET, "content": "a"}],
         "messages[1]: A message's role must be 'system', 'developer', 'user', 'assistant' or 'tool'."),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}],
         "messages[0]: Only content parts of type 'text' are supported, no images or sounds."),
        ("prompt", "", "prompt: A prompt must not be empty."),
        ("prompt", 7, "prompt: A prompt must be a string or a list of token ids."),
        ("prompt", [1, -1], "prompt: Token ids must be integers from 0 to 2147483647."),
        ("prompt", [SECRET], "prompt: Token ids must be integers from 0 to 2147483647."),
        ("prompt", {"sealed": 1},
         'prompt: A prompt that is an object must have "text", a string, and "public", true or false.'),
    ],
)  # fmt: skip
def test_refusals_are_the_gateways_own(room: Room, field: PromptField, given: Any, message: str) -> None:
    failed = room.confide(1, locked(field, given))
    assert isinstance(failed, Failed)
    assert (failed.code, failed.message, failed.param) == ("invalid_request", message, field)
    assert SECRET not in failed.message


@pytest.mark.parametrize("given", [b"", b"{", b'"\xff"', b'["\\ud800"]', b"[" * 3000, SECRET.encode()])
@pytest.mark.parametrize("field", ["messages", "prompt"])
def test_what_is_no_json_is_refused_and_not_quoted(room: Room, field: PromptField, given: bytes) -> None:
    failed = room.confide(1, locked(field, given))
    assert isinstance(failed, Failed) and failed.code == "invalid_request" and failed.param == field
    assert SECRET not in failed.message


def test_a_locked_prompt_shows_nothing_and_survives_the_wire() -> None:
    prompt = locked("prompt", SECRET)
    confide = AssignPrompt(1, "partitioned", prompt, SamplingParams())
    [read] = FrameReader[AssignPrompt](ToVault).feed(encode_frame((confide,)))
    assert read == confide
    assert repr(prompt) == "LockedPrompt(…)" and repr(confide) == "AssignPrompt(request_id=1)"


@pytest.fixture
def words() -> Iterator[None]:
    before = list(compiled._known)
    compiled.learn(ByteTokenizer())
    yield
    compiled._known[:] = before


FORM = {"regex": "[a-c]{3}secret"}
FORMED = [
    TextPrompt("a", form=json.dumps(FORM)),
    TokenPrompt((5, 6), form=json.dumps(FORM)),
    ChatPrompt((PromptMessage("user", "a"),), form=json.dumps(FORM)),
    locked("prompt", {"given": "a", "form": FORM}),
    locked("messages", {"given": [{"role": "user", "content": "a"}], "form": FORM}),
]


@pytest.mark.parametrize("prompt", FORMED)
def test_an_answer_follows_the_form_that_came_with_its_prompt(room: Room, words: None, prompt: Any) -> None:
    assert isinstance(room.confide(1, prompt, "isolated", max_tokens=40), PromptAccepted)
    room.serve()
    assert re.fullmatch("[a-c]{3}secret", bytes(room.answer(1)).decode())


def test_a_form_that_came_with_the_parameters_counts_for_nothing(room: Room, words: None) -> None:
    """No process that is not to see a form may choose one."""
    assert isinstance(room.confide(1, "a", "isolated", grammar='{"choice":["x"]}', max_tokens=4), PromptAccepted)
    room.serve()
    assert len(room.answer(1)) == 4


@pytest.mark.parametrize("level", ["partitioned", "obfuscated"])
def test_where_the_service_chooses_the_tokens_a_form_is_refused(room: Room, words: None, level: Any) -> None:
    refused = room.confide(1, FORMED[0], level)
    assert isinstance(refused, Failed) and refused.code == "form_refused" and refused.param == "response_format"
    assert not any(isinstance(message, Prefilled) for message in room.said)


@pytest.mark.parametrize("form", ['{"regex":"(secret"}', '{"regex":"secret{99999}"}', '{"secret":1}', "secret"])
def test_a_form_that_cannot_be_followed_is_refused_without_a_word_of_it(room: Room, words: None, form: str) -> None:
    refused = room.confide(1, TextPrompt("a", form=form), "isolated")
    assert isinstance(refused, Failed) and refused.code == "form_refused" and "secret" not in str(refused.message)


@pytest.mark.parametrize(("kind", "shown"), [("own", True), ("vllm", False)])
def test_what_is_public_stays_in_the_vault_where_another_engine_decodes(llama: Any, kind: Any, shown: bool) -> None:
    """It continues an answer, and takes no tokens of its prompt."""
    room = Room(llama, SETTINGS.model_copy(update={"kind": kind}))
    room.confide(1, ChatPrompt((PromptMessage("system", "Be kind.", True), PromptMessage("user", SECRET))))
    room.serve()
    [prefilled] = [message for message in room.said if isinstance(message, Prefilled)]
    assert bool(prefilled.public) is shown


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        (TextPrompt("I am <redacted>Ann</redacted>."), TextPrompt("I am Ann.")),
        (
            ChatPrompt((PromptMessage("user", "<redacted>Ann</redacted>?"),)),
            ChatPrompt((PromptMessage("user", "Ann?"),)),
        ),
    ],
)
def test_tags_are_taken_out_of_what_was_asked_for_at_obfuscated_and_is_read_alone(room: Room, marked: Any, plain: Any):
    sent = msgspec.structs.replace(marked, hidden=ObfuscationSecrets(bytes(32)))
    found = [room.confide(number, prompt, "isolated") for number, prompt in enumerate((sent, plain), 1)]
    assert [type(one) for one in found] == [PromptAccepted] * 2 and found[0].prompt_tokens == found[1].prompt_tokens
    assert room.confide(3, marked, "isolated").prompt_tokens > found[1].prompt_tokens, "else tags are text"
