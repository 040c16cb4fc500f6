"""A whole node behind a relay: the same answers as direct ones; no request twice; no address at the node, no word at
the relay."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import cloister
from cloister.addresses import HttpAddress
from cloister.channel.bhttp import Message, RequestHead, ResponseHead
from cloister.channel.ohttp import GATEWAY_PATH
from cloister.config import DEVELOPMENT_KEY
from tests.oblivious import Exchange, configuration_at, json_request
from tests.served import Command, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY = ("authorization", f"Bearer {DEVELOPMENT_KEY}")
SECRET = "zq-canary-of-the-relay"
ELSEWHERE = "127.0.0.77"  # a user's address, unlike the node's and the relay's


@pytest.fixture(scope="module")
def relay(tiny_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Command, str]]:
    command = Command(tmp_path_factory.mktemp("relay") / "log", "relay", "--to", tiny_server.url(), "--port", "0")
    yield command, command.wait_for(r"Relay +(http://\S+)", 60)
    command.stop()


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))


def answers(url: str, level: str, **way: Any) -> list[str]:
    with cloister.Client(url, api_key=DEVELOPMENT_KEY, allow_software_tee=True, **way) as client:
        model = client.models.list().data[0].id
        asked = [{"role": "user", "content": f"Say it: {SECRET}"}]
        same: dict[str, Any] = {"model": model, "messages": asked, "temperature": 0, "max_tokens": 12}
        whole = client.chat.completions.create(**same, extra_body={"protection": level})
        stream = client.chat.completions.create(**same, stream=True, extra_body={"protection": level})
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        return [whole.choices[0].message.content or "", "".join(pieces)]


@pytest.mark.parametrize("level", ["partitioned", "open"])
def test_answers_are_those_of_a_direct_client(tiny_server: Server, relay: tuple[Command, str], level: str) -> None:
    url = tiny_server.url()
    direct, relayed = answers(url, level), answers(url, level, relay=relay[1])
    assert direct == relayed and direct[0] == direct[1]


def test_the_node_writes_no_address_and_the_relay_no_word(tiny_server: Server, relay: tuple[Command, str]) -> None:
    url = tiny_server.url()
    body = {"model": "none", "messages": [{"role": "user", "content": SECRET}]}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=ELSEWHERE), timeout=60) as user:
        for message in (json_request("/v1/chat/completions", body, KEY), b"not HTTP"):
            exchange = Exchange(configuration_at(url), message)
            resource = relay[1] + HttpAddress.parse(url).resource
            answer = exchange.opened(user.post(resource, content=exchange.sent, headers=exchange.headers).content)
            assert isinstance(answer.head, ResponseHead) and answer.head.status in (400, 404)
        user.post(resource, content=b"nonsense", headers=exchange.headers)
    assert DEVELOPMENT_KEY not in relay[0].said
    for said in (tiny_server.said, relay[0].said):
        assert ELSEWHERE not in said and SECRET not in said


def test_the_evidence_states_the_key_that_is_published(tiny_server: Server) -> None:
    from cloister.attest.policy import load_policy
    from cloister.client.verification import examine

    url = tiny_server.url()
    verification = examine(url, load_policy(None, allow_software_tee=True))
    assert verification.passed
    assert configuration_at(url).public == verification.channel_key


def test_a_request_is_not_taken_twice_by_a_gateway_that_started_again(tiny_server: Server) -> None:
    url = tiny_server.url()
    exchange = Exchange(configuration_at(url), Message(RequestHead("GET", "http", "127.0.0.1", "/v1/models", (KEY,))))

    def sent() -> httpx.Response:
        for _ in range(300):
            try:
                return httpx.post(url + GATEWAY_PATH, content=exchange.sent, headers=exchange.headers, timeout=60)
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the gateway does not come back")

    answer = exchange.opened(sent().content).head
    assert isinstance(answer, ResponseHead) and answer.status == 200
    before = tiny_server.child("gateway")
    before.kill()
    before.wait(20)
    again = sent()
    assert (again.status_code, again.json()["error"]["code"]) == (409, "message_repeated")
