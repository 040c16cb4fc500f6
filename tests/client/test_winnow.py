"""The client picks the real answer out of several, and seals what its place is drawn from with the prompt alone."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest

from cloister.channel.envelope import InnerHead
from cloister.client.message import split_prompts
from cloister.client.winnow import IndexSecrets, Winnower
from cloister.errors import ChannelBroken, ObfuscationRefused
from cloister.messages.prompts import ChatPrompt, ObfuscationSecrets, TextPrompt
from cloister.obfuscation.index import REQUEST, Positions, Prf
from cloister.prompts.json_prompt import read_given

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "I am <redacted>Ann</redacted>."}]
SECRETS = IndexSecrets()
ANSWERS = ["one", "two", "three", "four", "five"]


def head(content_type: str, *more: tuple[str, str], status: int = 200) -> InnerHead:
    return InnerHead(status, (("content-type", content_type), ("content-length", "999"), *more))


COUNT = ("x-cloister-sequences", str(len(ANSWERS)))


def split(path: str = CHAT, headers: Any = (), **body: Any) -> tuple[dict[str, Any], bytes, Winnower]:
    fields, [prompt], winnower = split_prompts("POST", path, headers, json.dumps(body).encode(), SECRETS)
    assert winnower is not None
    return json.loads(fields), prompt, winnower


def secrets_of(prompt: bytes) -> ObfuscationSecrets:
    read = read_given("messages", prompt)
    assert isinstance(read, ChatPrompt) and read.hidden is not None
    assert read.messages[0].content == MESSAGES[0]["content"]
    return read.hidden


def test_the_index_and_substitutes_are_sealed_with_the_prompt_for_its_vault() -> None:
    wish = {"substitutes": [["Bo"], ["Eve"]], "minimum": 2}
    fields, prompt, _ = split(messages=MESSAGES, protection="obfuscated", obfuscation=wish)
    assert fields == {"protection": "obfuscated", "obfuscation": {"minimum": 2, "fakes": 2}, "messages": {"sealed": 1}}
    secrets = secrets_of(prompt)
    assert secrets.substitutes == (("Bo",), ("Eve",)) and len(secrets.index_secret) == 32
    _, again, _ = split(messages=MESSAGES, protection="obfuscated", obfuscation=wish, temperature=1, stop=["\n"])
    assert secrets_of(again).index_secret == secrets.index_secret, "one for every prompt"
    assert secrets_of(again).stops == ("\n",)
    _, other, _ = split(messages=MESSAGES, protection="obfuscated")
    assert secrets_of(other).index_secret != secrets.index_secret


def test_the_level_may_be_named_in_a_header_and_a_prompt_be_a_text() -> None:
    _, prompt, _ = split(COMPLETIONS, (("x-cloister-protection", "obfuscated"),), prompt="I am <redacted>A</redacted>.")
    read = read_given("prompt", prompt)
    assert isinstance(read, TextPrompt) and read.hidden is not None and read.text == "I am <redacted>A</redacted>."
    for level in ("partitioned", "isolated"):
        body = json.dumps({"messages": MESSAGES, "protection": level}).encode()
        _, [prompt], winnower = split_prompts("POST", CHAT, (), body, SECRETS)
        assert winnower is None and json.loads(prompt) == MESSAGES


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["\n", "Ann"]}, "stop"),
        ({"stop": "ann:"}, "stop"),
        ({"session": "for-ann"}, "session"),
        ({"cache_salt": "Ann"}, "cache_salt"),
        ({"logit_bias": {"17": 5}}, "logit_bias"),
        ({"stop": ["word"], "obfuscation": {"auto_redact": True}}, "stop"),
    ],
    ids=str,
)
def test_what_others_read_says_no_secret(fields: Any, param: str) -> None:
    """The process that answers sealed requests reads all but the prompt."""
    with pytest.raises(ObfuscationRefused) as refused:
        split(messages=MESSAGES, protection="obfuscated", **fields)
    assert refused.value.param == param and "Ann" not in str(refused.value)


def test_neither_does_a_header_and_elsewhere_all_of_it_is_allowed() -> None:
    with pytest.raises(ObfuscationRefused):
        split(CHAT, (("x-cloister-session", "ann"),), messages=MESSAGES, protection="obfuscated")
    _, prompt, _ = split(
        CHAT, (("x-cloister-session", "mine"),), messages=MESSAGES, protection="obfuscated", stop=["\n", "END"]
    )
    assert secrets_of(prompt).names == ("mine",) and set(secrets_of(prompt).stops) == {"\n", "END"}
    fine = {"messages": MESSAGES, "protection": "partitioned", "stop": ["Ann"], "logit_bias": {"17": 5}}
    assert split_prompts("POST", CHAT, (), json.dumps(fine).encode(), SECRETS).winnower is None


def real(prompt: bytes) -> str:
    return ANSWERS[Prf(secrets_of(prompt).index_secret).order(REQUEST, len(ANSWERS)).authentic]


def test_a_whole_answer_comes_out_alone() -> None:
    for _ in range(8):
        _, prompt, winnower = split(messages=MESSAGES, protection="obfuscated")
        kept = winnower.head(head("application/json", COUNT))
        assert "content-length" not in dict(kept.headers)
        choices = [{"index": at, "message": {"content": text}} for at, text in enumerate(ANSWERS)]
        written = json.dumps({"id": "x", "choices": choices, "usage": {"n": 1}}).encode()
        assert winnower.winnow(written[:20], False) == b""
        answer = json.loads(winnower.winnow(written[20:], True))
        assert answer == {"id": "x", "choices": [{"index": 0, "message": {"content": real(prompt)}}], "usage": {"n": 1}}


@pytest.mark.parametrize("cut", [1, 7, 10_000])
def test_a_streamed_answer_comes_out_alone_however_it_is_cut(cut: int) -> None:
    _, prompt, winnower = split(messages=MESSAGES, protection="obfuscated", stream=True)
    winnower.head(head("text/event-stream; charset=utf-8", COUNT))
    events = [
        b"data: %b\n\n" % json.dumps({"choices": [{"index": at, "delta": {"content": text[place]}}]}).encode()
        for place in range(3)
        for at, text in enumerate(ANSWERS)
    ]
    usage = b'data: {"choices":[],"usage":{"n":1}}\n\n'
    written = b"".join((b": a comment\n\n", *events, usage, b"data: [DONE]\n\n"))
    came = b"".join(winnower.winnow(written[at : at + cut], False) for at in range(0, len(written), cut))
    first, *read, told, last, _ = came.split(b"\n\n")
    assert (first, told + b"\n\n", last) == (b": a comment", usage, b"data: [DONE]")
    deltas = [json.loads(event.removeprefix(b"data: "))["choices"] for event in read]
    assert [len(choices) for choices in deltas] == [1, 1, 1] and {choices[0]["index"] for choices in deltas} == {0}
    assert "".join(choices[0]["delta"]["content"] for choices in deltas) == real(prompt)[:3]


def heard(stopped: int, *, rounds: int = 4) -> list[int]:
    """After every round, how many events were handed on of a real answer; one stream is stopped after the first."""
    _, _, winnower = split(messages=MESSAGES, protection="obfuscated", stream=True, seed=stopped)
    winnower.head(head("text/event-stream", COUNT))
    counts, came = [], b""
    for step in range(rounds):
        for at in range(len(ANSWERS)):
            if step < 1 or at != stopped:
                choice = {"index": at, "delta": {"content": "x"}}
                came += winnower.winnow(b"data: %b\n\n" % json.dumps({"choices": [choice]}).encode(), False)
        counts.append(came.count(b'"x"'))
    came += winnower.winnow(b"data: [DONE]\n\n", True)
    assert came.endswith(b"data: [DONE]\n\n") and came.count(b'"x"') in (1, rounds), "with the end all of it is given"
    return counts


@pytest.mark.parametrize("stopped", range(len(ANSWERS)))
def test_a_stream_that_is_late_holds_up_the_real_one(stopped: int) -> None:
    assert heard(stopped) == [1, 1, 1, 1], "whichever of them it is"


def test_where_events_are_handed_on_as_they_come_it_shows_which_one_is_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Positions, "readable", float("inf"))
    assert sorted(heard(stopped) for stopped in range(len(ANSWERS))) == [[1, 1, 1, 1], *[[1, 2, 3, 4]] * 4]


def test_errors_pass_and_an_answer_that_was_not_hidden_is_not_read() -> None:
    _, _, winnower = split(messages=MESSAGES, protection="obfuscated")
    refused = head("application/json", status=400)
    assert winnower.head(refused) == refused and winnower.winnow(b'{"error":1}', True) == b'{"error":1}'
    for count in ("", "1", "0", "33", "x", "9999999999"):
        with pytest.raises(ChannelBroken, match="among how many"):
            winnower.head(head("application/json", ("x-cloister-sequences", count)))
    winnower.head(head("text/event-stream", COUNT))
    assert winnower.winnow(b'data: {"error":{"code":"x"}}\n\n', False) == b'data: {"error":{"code":"x"}}\n\n'
    for choice in (b"7", b'{"index":5}', b'{"index":-1}', b'{"index":"0"}'):
        with pytest.raises(ChannelBroken):
            winnower.winnow(b'data: {"choices":[%b]}\n\n' % choice, False)


def test_the_secret_is_nowhere_but_in_the_prompt() -> None:
    fields, prompt, winnower = split(messages=MESSAGES, protection="obfuscated", obfuscation={"fakes": 3})
    secret = secrets_of(prompt).index_secret
    written = json.loads(prompt)["hidden"]["index_secret"]
    assert b64decode(written) == secret and written not in json.dumps(fields) and "Winnower object" in repr(winnower)
