"""A whole server, asked through the secure channel: at every level it says what it says in the clear."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cloister.attest.evidence import read_evidence, read_statement
from cloister.channel.envelope import Envelope
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ChannelBroken
from tests.sealed import SealedClient
from tests.served import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
LEVELS = ("partitioned", "isolated", "open")


class Node:
    """A server, asked in both ways."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.url()
        self.sealed = SealedClient(self.url)
        self.plain = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {DEVELOPMENT_KEY}"}, timeout=600
        )
        self.model = self.plain.get("/v1/models").json()["data"][0]["id"]

    def both(self, method: str, path: str, body: Any = None) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        plain = self.plain.request(method, path, json=body) if body is not None else self.plain.request(method, path)
        return self.sealed.ask(method, path, body), (plain.status_code, plain.content)

    def idle(self) -> bool:
        metrics = self.plain.get("/metrics").text
        return "cloister_running 0.0" in metrics and "cloister_waiting 0.0" in metrics


@pytest.fixture(scope="module")
def node(tiny_server: Server) -> Node:
    return Node(tiny_server)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it does not come to that")


def body_of(node: Node, **fields: Any) -> dict[str, Any]:
    return {
        "model": read_statement(node_evidence(node).statement).model,
        "max_tokens": 12,
        "temperature": 0,
        **fields,
    }


def node_evidence(node: Node) -> Any:
    return read_evidence(json.dumps(node.sealed.evidence()).encode())


def content(answer: bytes) -> Any:
    """What an answer says, without its name and time, and what was found computed: the second finds more."""
    read = json.loads(answer)
    read["usage"].pop("prompt_tokens_details")
    return {name: value for name, value in read.items() if name not in ("id", "created")}


ENDLESS = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 480, "ignore_eos": True}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": [{"role": "user", "content": "Hello there"}]}),
    "parts": (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "In parts"}]}]}),
    "logprobs": (CHAT, {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 3, "n": 2}),
    "sampled": (CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": 0.9, "seed": 5, "n": 3}),
    "confidential": (CHAT, {"messages": [{"role": "user", "content": "Public <confidential>not</confidential> so",
                                          "public": True}]}),
    "text": (COMPLETIONS, {"prompt": "Once upon a time"}),
    "tokens": (COMPLETIONS, {"prompt": [40, 41, 42, 43], "logprobs": 2}),
    "several": (COMPLETIONS, {"prompt": ["One", "Two, and more", "Three"], "n": 2, "best_of": 2, "seed": 1,
                              "temperature": 1.0}),
    "lists": (COMPLETIONS, {"prompt": [[40, 41], [50, 51, 52]]}),
}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", REQUESTS)
def test_sealed_answers_are_the_plain_ones(node: Node, name: str, level: str) -> None:
    path, fields = REQUESTS[name]
    sealed, plain = node.both("POST", path, body_of(node, protection=level, **fields))
    assert sealed[0] == plain[0] == 200, (sealed, plain)
    assert content(sealed[1]) == content(plain[1])


@pytest.mark.parametrize("level", LEVELS)
def test_streams_and_their_usage_too(node: Node, level: str) -> None:
    fields = {"stream": True, "stream_options": {"include_usage": True}, "n": 2, "protection": level}
    body = body_of(node, messages=[{"role": "user", "content": "Stream"}], **fields)
    sealed, plain = node.both("POST", CHAT, body)
    assert sealed[0] == plain[0] == 200

    def told(raw: bytes) -> tuple[dict[int, str], Any, bool]:
        events = [line[6:] for line in raw.decode().splitlines() if line.startswith("data: ")]
        texts: dict[int, str] = {}
        for event in map(json.loads, events[:-2]):
            for choice in event["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"].get("content", "")
        return texts, json.loads(events[-2])["usage"], events[-1] == "[DONE]"

    assert told(sealed[1]) == told(plain[1])


def test_stop_strings_cut_alike(node: Node) -> None:
    body = body_of(node, prompt="Once", logit_bias={"60": 100})
    text = json.loads(node.both("POST", COMPLETIONS, body)[0][1])["choices"][0]["text"]
    sealed, plain = node.both("POST", COMPLETIONS, {**body, "stop": [text[2:4]]})
    # How many tokens came before the stop was noticed is a matter of time.
    assert json.loads(sealed[1])["choices"] == json.loads(plain[1])["choices"]
    assert json.loads(sealed[1])["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": "x"}),
        (CHAT, {"messages": [{"role": "user", "content": "<confidential>x", "public": True}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "temperature": 9}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "model": "another"}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}], "protection": "mpc"}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": 7}),
        (COMPLETIONS, {"prompt": [10**6]}),
        (COMPLETIONS, {"prompt": "x", "echo": True}),
        (COMPLETIONS, {}),
    ],
)
def test_errors_are_the_plain_ones_word_for_word(node: Node, path: str, fields: dict[str, Any]) -> None:
    sealed, plain = node.both("POST", path, body_of(node, **fields))
    assert sealed[0] == plain[0] >= 400
    assert json.loads(sealed[1]) == json.loads(plain[1])


def test_models_sessions_views_and_keys(node: Node) -> None:
    sealed, plain = node.both("GET", "/v1/models")
    assert sealed[0] == plain[0] == 200
    assert json.loads(sealed[1])["data"][0]["id"] == json.loads(plain[1])["data"][0]["id"]
    body = body_of(node, messages=[{"role": "user", "content": "Keep this"}], session="mine")
    first = json.loads(node.sealed.ask("POST", CHAT, body)[1])
    assert content(node.sealed.ask("POST", CHAT, body)[1]) == content(json.dumps(first).encode())
    with node.sealed.asking("POST", CHAT, {**body, "stream": True, "max_tokens": 400, "ignore_eos": True}) as reply:
        begun = json.loads(next(reply.pieces()).split(b"data: ")[1])
        status, view = SealedClient(node.url).ask("GET", f"/v1/requests/{begun['id']}/view")
    [seen] = json.loads(view)["choices"]
    assert (status, seen["known"], seen["prompt"]["tokens"]) == (200, True, []) and seen["output"]["tokens"]
    assert node.sealed.ask("DELETE", "/v1/sessions/mine") == (204, b"")
    stranger = SealedClient(node.url, key="sk-unknown")
    assert stranger.ask("GET", "/v1/models")[0] == 401


def test_what_is_sealed_wrong_is_refused_before_anything_is_opened(node: Node) -> None:
    body = body_of(node, messages=[{"role": "user", "content": "x"}])
    envelope, _ = node.sealed.seal("POST", CHAT, body)
    assert node.sealed.post(envelope).status_code == 200
    again = node.sealed.post(envelope)
    assert (again.status_code, again.json()["error"]["code"]) == (409, "message_repeated")
    altered = node.sealed.post(node.sealed.seal("POST", CHAT, body)[0][:-1])
    assert (altered.status_code, altered.json()["error"]["code"]) == (400, "channel_broken")
    read = Envelope.decode(node.sealed.seal("POST", CHAT, body)[0])
    request = bytes([read.request[0] ^ 1]) + read.request[1:]
    tampered = node.sealed.post(Envelope(read.key_id, read.enc, request, read.prompts).encode())
    assert (tampered.status_code, tampered.json()["error"]["code"]) == (400, "channel_broken")
    withheld, _ = node.sealed.seal("POST", CHAT, body, ago_s=20)
    refused = node.sealed.post(withheld)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "message_expired")
    unknown = node.sealed.post(Envelope(bytes(8), read.enc, read.request, read.prompts).encode())
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (409, "channel_key_unknown")


def test_a_prompt_of_another_request_does_not_open(node: Node) -> None:
    """Swapped by whoever sits between: the vault refuses it, and the answer to that is sealed."""
    body = body_of(node, messages=[{"role": "user", "content": "x"}])
    envelope, opener = node.sealed.seal("POST", CHAT, body)
    mine, other = Envelope.decode(envelope), Envelope.decode(node.sealed.seal("POST", CHAT, body)[0])
    response = node.sealed.post(Envelope(mine.key_id, mine.enc, mine.request, other.prompts).encode())
    frames = opener.feed(response.content)
    opener.finish()
    assert b"channel_broken" in frames[1].data


def test_leaving_a_sealed_stream_frees_everything(node: Node) -> None:
    body = body_of(node, messages=[{"role": "user", "content": "x"}], stream=True, max_tokens=400, ignore_eos=True, n=2)
    for level in LEVELS:
        with node.sealed.asking("POST", CHAT, {**body, "protection": level}) as reply:
            next(reply.pieces())
        until(node.idle)


def test_a_dead_sealed_api_fails_its_requests_and_is_back(node: Node) -> None:
    body = body_of(node, **ENDLESS)
    with pytest.raises((ChannelBroken, httpx.RemoteProtocolError)), node.sealed.asking("POST", CHAT, body) as reply:
        next(reply.pieces())
        os.kill(node.server.child("sealed-api").children()[0].pid, signal.SIGKILL)
        reply.read()
    until(node.idle)
    envelope, _ = node.sealed.seal("GET", "/v1/models")
    assert node.sealed.post(envelope).status_code in (200, 503)

    def answers() -> bool:
        return node.sealed.post(node.sealed.seal("GET", "/v1/models")[0]).status_code == 200

    until(answers)
    assert "The sealed API ended" in node.server.said


def test_a_dead_gateway_fails_its_requests_and_is_back_with_the_same_channel_key(node: Node) -> None:
    before = node.sealed.channel_key
    body = body_of(node, **ENDLESS)
    with pytest.raises((ChannelBroken, httpx.HTTPError)), node.sealed.asking("POST", CHAT, body) as reply:
        next(reply.pieces())
        node.server.child("gateway").kill()
        reply.read()

    def answers() -> bool:
        try:
            return node.plain.get("/health").status_code == 200
        except httpx.HTTPError:
            return False

    until(answers)
    until(node.idle)
    assert node.sealed.find_key() == before
    assert node.sealed.ask("GET", "/v1/models")[0] == 200


def test_evidence_speaks_of_this_node(node: Node) -> None:
    evidence = node_evidence(node)
    assert evidence.tee == "none" and evidence.release is not None
    statement = read_statement(evidence.statement)
    assert statement.weights != bytes(32) and statement.started <= time.time()


def test_nothing_of_it_is_in_the_log(node: Node) -> None:
    said = node.server.said
    assert "Traceback" not in said and node.sealed.channel_key.hex() not in said


def test_another_node_has_another_key(node: Node, short_server: str) -> None:
    """That keys are drawn anew at each start: controller/test_channel_keys.py."""
    other = SealedClient(short_server)
    assert other.channel_key != node.sealed.channel_key
    other.channel_key = node.sealed.channel_key
    refused = other.post(other.seal("GET", "/v1/models")[0])
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "channel_key_unknown")
