"""Clients behind a relay: the node gets no address, the relay no content; what a relay changes is an error."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from cloister.addresses import HttpAddress
from cloister.attest.policy import load_policy
from cloister.channel.ohttp import CHUNKED_REQUEST_TYPE, GATEWAY_PATH
from cloister.channel.ohttp.keys import document_of
from cloister.channel.sealing import ChannelKey
from cloister.client import oblivious as module
from cloister.client.oblivious import RelayedNode
from cloister.client.openai import AsyncClient, ChannelBrokenError, Client, NodeNotVerifiedError
from cloister.client.verification import NodeNotVerified
from cloister.errors import ChannelKeyUnknown, ServiceUnavailable, SetupError, VerificationFailed
from cloister.transparency.proof import Release
from tests.client.fake_node import KEY, MODEL, running
from tests.client.http_server import Received, Reply, reply
from tests.client.oblivious_node import ObliviousNode, between, relayed, whole, with_body
from tests.served import Command

SECRET = "the secret of nobody else"
ASKED = [{"role": "user", "content": SECRET}]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITS_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr("cloister.relay.KEYS_S", 0.0)


@pytest.fixture
def node(tmp_path: Path, release: Release) -> Iterator[ObliviousNode]:
    shutil.copytree(release.log_dir, tmp_path / "log")
    with running(ObliviousNode(replace(release, log_dir=tmp_path / "log"))) as node:
        assert isinstance(node, ObliviousNode)
        yield node


@pytest.fixture
def relay(node: ObliviousNode) -> Iterator[str]:
    with relayed(node.url) as url:
        yield url


def client(node: ObliviousNode, relay: str, **more: object) -> Client:
    return Client(node.url, api_key=KEY, allow_software_tee=True, relay=relay, max_retries=0, **more)


def said(client: Client) -> str:
    answer = client.chat.completions.create(model=MODEL, messages=ASKED)
    return answer.choices[0].message.content


def test_everything_goes_through_the_relay(node: ObliviousNode, relay: str) -> None:
    with client(node, relay) as one:
        assert said(one) == "so it is "
        chunks = list(one.chat.completions.create(model=MODEL, messages=ASKED, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so it is "
    assert {received.path for received in node.server.received} == {GATEWAY_PATH}
    assert [received.path for received in node.inside] == ["/v1/evidence", "/v1/sealed", "/v1/sealed"]
    assert [opened.prompts for opened in node.opened] == [[ASKED], [ASKED]] and not node.in_the_clear


def test_what_passes_the_relay_says_nothing_and_does_not_differ_between_users(node: ObliviousNode, relay: str) -> None:
    async def as_it_is(received: Received, answer: Reply) -> Reply:
        return answer

    with between(relay, as_it_is) as seen:
        for words in ("first", "second user"):
            with client(node, seen.url, default_headers={"User-Agent": words, "X-Stainless-OS": words}) as one:
                said(one)
    kept = [(received.path, received.headers | {"host": ""}, len(received.body)) for received in seen.received]
    half = len(kept) // 2
    assert kept[:half] == kept[half:] and half == 3
    assert all(SECRET.encode() not in received.raw and KEY.encode() not in received.raw for received in seen.received)
    at_node = [received.headers | {"host": ""} for received in node.server.received]
    assert at_node[:half] == at_node[half:]
    assert set().union(*at_node) <= {"host", "content-type", "accept", "incremental", "content-length"}


async def test_the_asynchronous_client_speaks_to_a_relay_too(node: ObliviousNode, relay: str) -> None:
    more = {"allow_software_tee": True, "relay": relay}
    async with await asyncio.to_thread(lambda: AsyncClient(node.url, api_key=KEY, **more)) as one:
        answer = await one.chat.completions.create(model=MODEL, messages=ASKED)
    assert answer.choices[0].message.content == "so it is "


def test_two_users_never_send_the_same_bytes_and_an_exchange_is_fresh(node: ObliviousNode, relay: str) -> None:
    with client(node, relay) as one, client(node, relay) as other:
        for _ in range(2):
            said(one), said(other)
    sent = [received.body for received in node.server.received if received.method == "POST"]
    assert len({body[:39] for body in sent}) == len(sent) == 6


def test_after_the_node_started_again_a_client_verifies_and_sends_once_more(node: ObliviousNode, relay: str) -> None:
    with client(node, relay) as one:
        said(one)
        node.restart()
        assert said(one) == "so it is "
    assert node.evidence_asked == 2 and len(node.opened) == 2


def test_a_key_problem_that_evidence_disproves_has_nothing_sent_again(node: ObliviousNode, relay: str) -> None:
    problem = b'{"type":"https://iana.org/assignments/http-problem-types#ohttp-key"}'
    asked = 0

    async def refuse(received: Received, answer: Reply) -> Reply:
        nonlocal asked
        asked += len(received.body) > 1500
        return reply(400, problem, "application/problem+json") if len(received.body) > 1500 else answer

    with between(relay, refuse) as seen, client(node, seen.url) as one, pytest.raises(ChannelBrokenError) as refused:
        said(one)
    assert refused.value.code == ChannelKeyUnknown.code and asked == 1


def test_a_relay_that_shows_a_key_of_its_own_is_found(node: ObliviousNode, relay: str) -> None:
    async def swap(received: Received, answer: Reply) -> Reply:
        return answer if received.method == "POST" else with_body(answer, document_of(ChannelKey.generate().public))

    with between(relay, swap) as seen, pytest.raises(VerificationFailed) as failed:
        client(node, seen.url)
    assert failed.value.checks == ("oblivious keys",) and not node.evidence_asked


def test_a_node_with_a_key_for_this_user_alone_is_found(node: ObliviousNode, relay: str) -> None:
    """Its evidence names the key that the exchange needs; the relay shows all of its users another one."""
    common = document_of(ChannelKey.generate().public)

    async def swap(received: Received, answer: Reply) -> Reply:
        later = received.method == "GET" and node.evidence_asked == 0
        return with_body(answer, common) if later else answer

    with between(relay, swap) as seen, pytest.raises(VerificationFailed):
        module.WAITS_S = (0.0,)
        client(node, seen.url)
    node.states = bytes(32)
    with pytest.raises(NodeNotVerified) as failed:
        client(node, relay)
    assert failed.value.checks == ("oblivious keys",)


@pytest.mark.parametrize("way", ["cut", "altered", "swapped", "plain", "empty"])
def test_what_a_relay_changes_is_an_error_and_nothing_is_computed_twice(
    node: ObliviousNode, relay: str, way: str
) -> None:
    kept: list[bytes] = []

    async def change(received: Received, answer: Reply) -> Reply:
        if len(received.body) <= 1500 or answer.status != 200:
            return answer
        data = await whole(answer)
        kept.append(data)
        broken = {
            "cut": data[:-20],
            "altered": data[:400] + bytes((data[400] ^ 1,)) + data[401:],
            "swapped": kept[0],
            "empty": b"",
        }
        if way == "plain":
            return reply(200, b'{"choices":[]}')
        return with_body(answer, broken[way])

    with between(relay, change) as seen, client(node, seen.url) as one:
        if way == "swapped":
            said(one)
        with pytest.raises(ChannelBrokenError):
            said(one)
    assert len(node.opened) == (2 if way == "swapped" else 1)


def test_a_request_that_a_relay_held_back_is_sent_once_more_and_computed_once(node: ObliviousNode, relay: str) -> None:
    """By the node's clock, which evidence shows before and after."""

    async def hold(received: Received, answer: Reply) -> Reply:
        if received.method == "POST":
            node.clock_ahead_s = 60
        return answer

    with between(relay, hold) as seen, client(node, seen.url) as one:
        assert said(one) == "so it is "
    assert [received.path for received in node.inside] == [*("/v1/evidence", "/v1/sealed") * 2]
    assert len(node.opened) == 1


def test_a_request_that_a_relay_sends_twice_is_computed_once(node: ObliviousNode, relay: str) -> None:
    with client(node, relay) as one:
        said(one)
    repeated = node.server.received[-1]
    assert repeated.headers["content-type"] == CHUNKED_REQUEST_TYPE
    with relayed(node.url) as other:
        import httpx

        address = HttpAddress.parse(node.url)
        headers = {"Content-Type": CHUNKED_REQUEST_TYPE}
        answer = httpx.post(other + address.resource, content=repeated.body, headers=headers)
    assert answer.status_code != 200 and len(node.opened) == 1


def test_a_relay_that_is_away_or_knows_no_such_node_is_said(node: ObliviousNode, relay: str) -> None:
    with pytest.raises(ServiceUnavailable, match="does not answer"):
        client(node, "http://127.0.0.1:9")
    with relayed("http://127.0.0.1:9") as other, pytest.raises(ServiceUnavailable, match="shows no keys"):
        client(node, other)
    assert not node.server.received


def test_there_is_no_way_around_the_relay(node: ObliviousNode) -> None:
    with relayed(node.url) as relay:
        one = client(node, relay)
        said(one)
    count = len(node.server.received)
    with pytest.raises(openai.APIConnectionError):
        said(one)
    one.close()
    assert len(node.server.received) == count


def test_a_relay_and_no_verification_contradict_each_other(node: ObliviousNode) -> None:
    with pytest.raises(SetupError):
        Client(node.url, api_key=KEY, insecure_plaintext=True, relay="http://127.0.0.1:9")


def test_a_node_that_cannot_be_verified_again_gets_nothing(node: ObliviousNode, relay: str) -> None:
    with client(node, relay) as one:
        said(one)
        node.restart()
        node.states = bytes(32)
        with pytest.raises(NodeNotVerifiedError):
            said(one)
    assert len(node.opened) == 1


def test_a_node_says_its_way(node: ObliviousNode, relay: str) -> None:
    one = RelayedNode(node.url, load_policy(None, allow_software_tee=True), relay)
    assert str(one.relay) == relay and one.verification.passed
    assert "oblivious keys" in {check.name for check in one.verification.verdict.checks}
    assert len(one.verification.verdict.claims["oblivious"]) == 64


def test_the_proxy_gives_any_program_the_way_through_the_relay(node: ObliviousNode, relay: str, tmp_path: Path) -> None:
    command = Command(tmp_path / "said", "proxy", node.url, "--allow-software-tee", "--relay", relay, "--port", "0")
    try:
        url = command.wait_for(r"API +(http://\S+)", 60)
        with openai.OpenAI(base_url=url, api_key=KEY) as plain:
            chunks = list(plain.chat.completions.create(model=MODEL, messages=ASKED, stream=True))
    finally:
        status = command.stop()
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so it is " and status == 0
    assert {received.path for received in node.server.received} == {GATEWAY_PATH}
    assert f"behind {relay}" in command.said and SECRET not in command.said
