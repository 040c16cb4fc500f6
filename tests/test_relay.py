"""The relay by itself: what it passes on, what it refuses, how it streams; it logs nothing."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from cloister import relay as module
from cloister.addresses import HttpAddress
from cloister.channel.ohttp import CHUNKED_REQUEST_TYPE, CHUNKED_RESPONSE_TYPE, GATEWAY_PATH, KEYS_TYPE, REQUEST_TYPE
from cloister.channel.ohttp.keys import document_of
from cloister.channel.sealing import ChannelKey
from tests.client.http_server import Received, Reply, Server, http_server, reply
from tests.client.oblivious_node import relayed
from tests.served import Command

CHUNKED = {"Content-Type": CHUNKED_REQUEST_TYPE, "Incremental": "?1"}
DOCUMENT = document_of(ChannelKey.generate().public)


class Node:
    """Answers with what the test wants."""

    def __init__(self) -> None:
        self.server = Server()
        self.answer = reply(200, b"sealed", CHUNKED_RESPONSE_TYPE, Set_Cookie="user=7", X_Trace="7", ETag="7")

    async def handle(self, received: Received) -> Reply:
        if received.method == "GET":
            return reply(200, DOCUMENT, KEYS_TYPE, Set_Cookie="user=7")
        return self.answer


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    with http_server(node.handle) as server:
        node.server = server
        yield node


@pytest.fixture
def url(node: Node) -> Iterator[str]:
    """The resource of the node at the relay."""
    with relayed(node.server.url) as relay:
        yield relay + HttpAddress.parse(node.server.url).resource


def test_no_header_passes_in_either_direction_but_the_few_that_all_have(url: str, node: Node) -> None:
    mine = {"Cookie": "a=b", "User-Agent": "me", "Accept-Language": "xx", "Authorization": "Bearer x", "X-Mine": "1"}
    mine |= {"X-Forwarded-For": "203.0.113.7", "Forwarded": "for=203.0.113.7", "Via": "me", "Traceparent": "00-1"}
    answer = httpx.post(url + "?user=7", content=b"ciphertext", headers=CHUNKED | mine)
    assert (answer.status_code, answer.content) == (200, b"sealed")
    assert answer.headers.keys() - {"date", "transfer-encoding", "content-type"} == {
        "cache-control",
        "incremental",
        "x-accel-buffering",
    }
    [received] = node.server.received
    assert received.path == GATEWAY_PATH and received.body == b"ciphertext"
    assert received.headers.keys() == {"host", "content-type", "accept", "incremental", "content-length"}
    assert received.headers["host"] == node.server.url.removeprefix("http://")
    assert b"203.0.113.7" not in received.raw and received.raw.count(b"127.0.0.1") == 1


def test_keys_are_asked_for_once_for_all_users(url: str, node: Node) -> None:
    for user in range(3):
        answer = httpx.get(url, headers={"X-User": str(user)})
        assert answer.content == DOCUMENT and answer.headers["content-type"] == KEYS_TYPE
        assert "set-cookie" not in answer.headers
    assert len(node.server.received) == 1


def test_what_is_no_key_document_is_not_shown(url: str, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "DOCUMENT", b"anything")
    assert httpx.get(url).status_code in (400, 503)


@pytest.mark.parametrize(
    ("method", "path", "kind", "status"),
    [
        ("POST", "", "application/json", 415),
        ("POST", "", "application/cloister-sealed", 415),
        ("PUT", "", CHUNKED_REQUEST_TYPE, 415),
        ("DELETE", "", CHUNKED_REQUEST_TYPE, 415),
        ("POST", "/v1/chat/completions", CHUNKED_REQUEST_TYPE, 400),
        ("POST", "/../metrics", CHUNKED_REQUEST_TYPE, 400),
    ],
)
def test_it_is_no_proxy_for_anything_else(url: str, node: Node, method: str, path: str, kind: str, status: int) -> None:
    answer = httpx.request(method, url + path, content=b"x", headers={"Content-Type": kind})
    assert answer.status_code == status and not node.server.received


def test_another_server_is_not_reached(url: str, node: Node) -> None:
    with http_server(node.handle) as other:
        resource = HttpAddress.parse(other.url).resource
        base = url.rpartition("/")[0]
        assert httpx.post(base + resource, content=b"x", headers=CHUNKED).status_code == 400
        assert httpx.post(base + "/", content=b"x", headers=CHUNKED).status_code == 400
        assert not other.received


def test_bodies_are_bounded(url: str, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    assert httpx.post(url, content=bytes(1001), headers=CHUNKED).status_code == 413
    assert not node.server.received
    assert httpx.post(url, content=iter([bytes(600), bytes(600)]), headers=CHUNKED).status_code == 413
    assert all(b"0\r\n\r\n" not in received.raw for received in node.server.received)


def test_a_body_that_does_not_come_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BODY_S", 0.2)
    host, port = HttpAddress.parse(url).host, HttpAddress.parse(url).port
    with socket.create_connection((host, port), timeout=20) as slow:
        path = "/" + url.split("/", 3)[3]
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {REQUEST_TYPE}\r\nContent-Length: 10\r\n\r\nabc"
        slow.sendall(head.encode())
        assert b" 408 " in slow.recv(4096)


def test_refusals_pass_with_status_and_json_alone(url: str, node: Node) -> None:
    for status, kind, text in ((400, "application/problem+json", b'{"type":"x"}'), (409, "application/json", b"{}")):
        node.answer = reply(status, text, kind, Set_Cookie="user=7", Retry_After="5")
        answer = httpx.post(url, content=b"x", headers=CHUNKED)
        assert (answer.status_code, answer.content, answer.headers["content-type"]) == (status, text, kind)
        assert answer.headers["retry-after"] == "5" and "set-cookie" not in answer.headers
    for strange in (reply(200, b"<html>", "text/html"), reply(302, b"", "text/html", Location="http://elsewhere")):
        node.answer = strange
        answer = httpx.post(url, content=b"x", headers=CHUNKED)
        assert (answer.status_code, answer.content) == (502, b"") and "location" not in answer.headers


def test_a_node_that_is_away_is_said(node: Node) -> None:
    with relayed("http://127.0.0.1:9") as relay:
        assert httpx.post(relay + "/127.0.0.1:9", content=b"x", headers=CHUNKED).status_code == 503
        assert httpx.get(relay + "/127.0.0.1:9").status_code == 503


def test_an_answer_streams_and_one_that_breaks_off_is_not_completed(url: str, node: Node) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        while len(heard) < 1:
            await _moment()
        yield b"second"
        raise ConnectionAbortedError

    heard: list[bytes] = []
    node.answer = Reply(200, CHUNKED_RESPONSE_TYPE, pieces())
    with (
        pytest.raises(httpx.RemoteProtocolError),
        httpx.stream("POST", url, content=b"x", headers=CHUNKED) as answer,
    ):
        for piece in answer.iter_raw():
            heard.append(piece)
    assert b"".join(heard) == b"firstsecond"


async def _moment() -> None:
    import asyncio

    await asyncio.sleep(0.01)


def test_a_request_streams_without_waiting_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a node gets of a body while its sender still waits."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        node = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with relayed(node) as relay:
            address = HttpAddress.parse(relay)
            with socket.create_connection((address.host, address.port), timeout=20) as user:
                path = HttpAddress.parse(node).resource
                head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {CHUNKED_REQUEST_TYPE}\r\n"
                user.sendall((head + "Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n").encode())
                listening.settimeout(20)
                accepted, _ = listening.accept()
                with accepted:
                    accepted.settimeout(20)
                    got = b""
                    while b"first" not in got:
                        got += accepted.recv(4096)
                    user.sendall(b"6\r\nsecond\r\n0\r\n\r\n")
                    while b"second" not in got:
                        got += accepted.recv(4096)
                    assert b"transfer-encoding: chunked" in got.lower() and b"incremental: ?1" in got.lower()
                    accepted.sendall(b"HTTP/1.1 409 X\r\nContent-Length: 0\r\n\r\n")
                assert b" 409 " in user.recv(4096)


def test_a_user_who_leaves_ends_the_exchange(url: str, node: Node) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"more"
            await _moment()

    node.answer = Reply(200, CHUNKED_RESPONSE_TYPE, pieces())
    with httpx.stream("POST", url, content=b"x", headers=CHUNKED) as answer:
        next(answer.iter_raw())
    for _ in range(1000):
        if node.server.cancelled:
            return
        time.sleep(0.01)
    raise AssertionError("the node still answers")


def test_a_reader_that_does_not_read_holds_the_node_back(url: str, node: Node) -> None:
    made = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1 << 16
            yield bytes(1 << 16)

    node.answer = Reply(200, CHUNKED_RESPONSE_TYPE, pieces())
    with httpx.stream("POST", url, content=b"x", headers=CHUNKED) as answer:
        next(answer.iter_raw())
        before = -1
        while made != before:
            before = made
            time.sleep(0.5)
    assert made < 64 << 20


def test_it_logs_no_address_and_no_content(url: str, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        httpx.post(url, content=b"ciphertext", headers=CHUNKED)
        httpx.post(url + "/wrong", content=b"x", headers=CHUNKED)
    assert not [one for one in caplog.records if one.name.startswith(("cloister", "uvicorn"))]


def test_the_command_serves_says_nothing_of_its_users_and_ends(node: Node, tmp_path: Path) -> None:
    command = Command(tmp_path / "log", "relay", "--to", node.server.url, "--port", "0")
    relay = command.wait_for(r"Relay +(http://\S+)", 60)
    resource = HttpAddress.parse(node.server.url).resource
    assert httpx.post(relay + resource, content=b"ciphertext", headers=CHUNKED).content == b"sealed"
    assert httpx.post(relay + "/elsewhere", content=b"ciphertext", headers=CHUNKED).status_code == 400
    assert command.stop() == 0
    lines = command.said.split()
    assert "ciphertext" not in command.said and "127.0.0.1" not in "".join(lines[5:]).replace(node.server.url, "")


def test_two_nodes_with_one_address_are_refused() -> None:
    command = [sys.executable, "-m", "cloister", "relay", "--to", "http://a.example", "--to", "http://a.example/v1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "Two nodes" in ended.stderr


def test_connections_of_one_address_are_bounded() -> None:
    """That `most_of_one` holds is tested in gateway/test_connection.py; here that the command sets it."""
    from cloister.cli.relay import RelayOptions

    assert RelayOptions(to=["http://a.example"]).connections == 64
