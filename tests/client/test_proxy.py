"""The local endpoint: any program's HTTP in, the node's answers out, and nobody else's."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest

from cloister.client.downstream import Request, refuse_foreign
from cloister.errors import VerificationFailed
from tests.client.fake_node import KEY, MODEL, FakeNode, release_in, running
from tests.client.local_proxy import proxy_to

SECRET = "what only the vault may read"
MESSAGES: Any = [{"role": "user", "content": SECRET}]


@pytest.fixture
def proxy(node: FakeNode) -> Iterator[str]:
    with proxy_to(node.url) as url:
        yield url


def sdk(proxy: str, **more: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0, **more)


def raw(proxy: str, data: bytes, *, until: bytes = b"") -> bytes:
    """Send bytes, read until the other side closes or `until` came."""
    host, port = proxy.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(data)
        got = b""
        while piece := connection.recv(65536):
            got += piece
            if until and until in got:
                break
        return got


def wait_until(true: Callable[[], bool], patience_s: float = 60) -> None:
    end = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def open_to(node: FakeNode) -> list[Any]:
    """The proxy's connections to the node of which neither side has been closed."""
    port = int(node.url.rpartition(":")[2])
    ours = psutil.Process().net_connections("tcp")
    return [one for one in ours if one.raddr and one.raddr.port == port and one.status == psutil.CONN_ESTABLISHED]


def test_the_unmodified_sdk_speaks_through_it(proxy: str, node: FakeNode) -> None:
    with sdk(proxy) as client:
        assert [model.id for model in client.models.list()] == [MODEL]
        answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert answer.choices[0].message.content == "so it is "
        events = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert [event.choices[0].delta.content for event in events] == ["so ", "it ", "is ", None]
        assert client.completions.create(model=MODEL, prompt=[1, 2, 3]).choices[0].text == "so it is "
    assert node.opened[-1].prompts == [[1, 2, 3]] and node.opened[-1].headers["authorization"] == f"Bearer {KEY}"
    assert not node.in_the_clear
    for received in node.server.received:
        assert SECRET.encode() not in received.raw and KEY.encode() not in received.raw
        if received.path == "/v1/sealed":
            assert set(received.headers) == {"host", "content-type", "accept", "content-length"}


def test_connections_to_the_node_are_used_again(proxy: str, node: FakeNode) -> None:
    before = node.server.connections
    with sdk(proxy) as client:
        for _ in range(5):
            client.chat.completions.create(model=MODEL, messages=MESSAGES)
            list(client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True))
    assert node.server.connections == before + 1


def test_errors_of_the_node_pass_through(proxy: str) -> None:
    with sdk(proxy) as client:
        with pytest.raises(openai.AuthenticationError, match="No such key"):
            client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
        with pytest.raises(openai.NotFoundError, match="Nothing here"):
            client.models.retrieve("none")
        with pytest.raises(openai.BadRequestError, match="cannot be sealed"):
            client.moderations.create(model=MODEL, input="x")


def test_a_field_that_is_given_twice_is_refused_here(proxy: str, node: FakeNode) -> None:
    body = f'{{"model": "{MODEL}", "messages": {json.dumps(MESSAGES)}, "protection": "isolated", "protection": "open"}}'
    answer = httpx2.post(f"{proxy}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "protection" and "given twice" in answer.json()["error"]["message"]
    assert not node.opened, "nothing was sent"


def test_a_node_that_started_again_is_verified_again(proxy: str, node: FakeNode) -> None:
    with sdk(proxy) as client:
        node.restart()
        assert client.models.list().data
        assert node.evidence_asked == 2
        node.restart()
        node.missing_layers = ("seccomp",)
        with pytest.raises(openai.APIStatusError, match="sandbox") as refused:
            client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert refused.value.status_code == 502 and refused.value.code == "verification_failed"
    assert len(node.opened) == 1


def test_a_node_that_is_gone_and_comes_back(tmp_path: Path) -> None:
    release = release_in(tmp_path / "log")
    with running(FakeNode(release)) as node:
        port = int(node.url.rpartition(":")[2])
        with proxy_to(node.url) as url, sdk(url) as client:
            assert client.models.list().data
            # The kept connection dies with the node; another one finds nobody, and later a node with another key.
            node_again = FakeNode(release)
            node.server.vanish()
            with pytest.raises(openai.InternalServerError) as refused:
                client.models.list()
            assert refused.value.status_code == 503 and refused.value.code == "service_unavailable"
            with running(node_again, port):
                assert client.models.list().data and node_again.evidence_asked == 1


def test_a_kept_connection_that_the_node_closed_is_not_an_error(proxy: str, node: FakeNode) -> None:
    with sdk(proxy) as client:
        assert client.models.list().data
        node.server.drop_connections()
        wait_until(lambda: not open_to(node))  # a request sent before the end arrives gets 503 and Retry-After
        assert client.models.list().data


def test_pieces_arrive_as_they_are_made(proxy: str, node: FakeNode) -> None:
    node.pause_s = 30
    with sdk(proxy) as client:
        events = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        assert next(events).choices[0].delta.content == "so "
        events.close()


def test_who_goes_away_ends_the_work_on_the_node(proxy: str, node: FakeNode) -> None:
    node.words, node.pause_s = ("so ",) * 1000, 0.01
    with sdk(proxy) as client:
        events = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        next(events)
        events.close()
    wait_until(lambda: node.server.cancelled == 1)


def test_who_goes_away_before_the_first_word_ends_the_work_too(proxy: str, node: FakeNode) -> None:
    node.think_s = 30
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
    raw(proxy, request(b"POST", b"/v1/chat/completions", body), until=b"200 OK")
    wait_until(lambda: node.server.readers[-1].at_eof())


async def test_many_at_once(proxy: str, node: FakeNode) -> None:
    node.words = tuple(f"{number} " for number in range(50))
    async with openai.AsyncOpenAI(base_url=f"{proxy}/v1", api_key=KEY, max_retries=0) as client:

        async def ask() -> str:
            events = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
            return "".join([event.choices[0].delta.content or "" async for event in events])

        answers = await asyncio.gather(*(ask() for _ in range(32)))
    assert set(answers) == {"".join(node.words)}


def test_a_slow_reader_does_not_fill_the_memory(proxy: str, node: FakeNode) -> None:
    """What the program does not read stays with the node: the proxy stops reading, too."""
    node.words = ("x" * 60_000,) * 1000
    body = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
    host, port = proxy.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(request(b"POST", b"/v1/chat/completions", body))
        connection.recv(1000)
        time.sleep(1)
        assert len(node.opened) == 1 and node.said < 750
        got = 0
        while piece := connection.recv(1 << 20):
            got += len(piece)
            if piece.endswith(b"0\r\n\r\n"):
                break
    assert got > 1000 * 60_000


def request(method: bytes, path: bytes, body: bytes = b"", *headers: bytes, host: bytes = b"127.0.0.1") -> bytes:
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: " + host, b"Content-Type: application/json"]
    lines += [b"Authorization: Bearer " + KEY.encode(), b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join((*lines, b"", body))


@pytest.mark.parametrize(
    "host",
    [b"evil.example", b"evil.example:8001", b"127.0.0.1.evil.example", b"10.0.0.1", b"", b"[::2]", b"localhost.evil"],
)
def test_another_hosts_name_is_refused(proxy: str, node: FakeNode, host: bytes) -> None:
    got = raw(proxy, request(b"GET", b"/v1/models", host=host), until=b"foreign_host")
    assert got.startswith(b"HTTP/1.1 403 ") and not node.opened


@pytest.mark.parametrize("host", [b"127.0.0.1", b"localhost:8001", b"[::1]:8001", b"127.0.0.1:1"])
def test_this_machines_names_are_served(proxy: str, host: bytes) -> None:
    assert raw(proxy, request(b"GET", b"/v1/models", host=host), until=MODEL.encode()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"http://127.0.0.1.evil.example", b"file://"])
def test_a_web_page_is_refused(proxy: str, node: FakeNode, origin: bytes) -> None:
    got = raw(proxy, request(b"POST", b"/v1/completions", b"{}", b"Origin: " + origin), until=b"foreign_origin")
    assert got.startswith(b"HTTP/1.1 403 ") and not node.opened
    assert b"access-control" not in got.lower()


def test_two_hosts_or_none_are_refused() -> None:
    for headers in ((), (("Host", "localhost"), ("host", "localhost"))):
        refusal = refuse_foreign(Request("GET", "/", headers, b""))
        assert refusal is not None and refusal.status == 403
    assert refuse_foreign(Request("GET", "/", (("HOST", "localhost"),), b"")) is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"a: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (request(b"POST", b"/v1/completions", b"x" * (17 << 20)), 413),
        (request(b"POST", b"/v1/chat/completions", b"not json"), 400),
        (b"CONNECT node.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (request(b"GET", b"http://node.example/v1/models"), 400),
    ],
)
def test_what_cannot_be_served_is_refused_and_not_sent(proxy: str, node: FakeNode, data: bytes, status: int) -> None:
    try:
        got = raw(proxy, data, until=b'"error"')
    except ConnectionError:  # it closed before all that is too large was read
        assert status in (413, 431)
        got = b"HTTP/1.1 %d " % status
    assert got.startswith(b"HTTP/1.1 %d " % status) and not node.opened


def test_requests_one_after_the_other_in_one_packet_are_answered_in_order(proxy: str, node: FakeNode) -> None:
    data = request(b"GET", b"/v1/models") + request(b"GET", b"/v1/nothing") + request(b"GET", b"/v1/models")
    got = raw(proxy, data + request(b"GET", b"/v1/models", b"", b"Connection: close"))
    statuses = [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200, 404, 200, 200]


def test_an_offer_to_speak_something_else_is_passed_over(proxy: str, node: FakeNode) -> None:
    """Some HTTP clients offer HTTP/2 with every first request."""
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQ")
    body = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
    asked = request(b"POST", b"/v1/chat/completions", body, *offer) + request(b"GET", b"/v1/models", b"", *offer)
    got = raw(proxy, asked + request(b"GET", b"/v1/models", b"", b"Connection: close"))
    assert [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]] == [200, 200, 200]
    assert not {"upgrade", "http2-settings"} & set(node.opened[0].headers)


def test_a_program_that_asks_before_it_sends_a_body_is_told_to_go_on(proxy: str) -> None:
    body = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
    host, port = proxy.removeprefix("http://").split(":")
    with closing(socket.create_connection((host, int(port)), timeout=60)) as connection:
        connection.sendall(request(b"POST", b"/v1/chat/completions", body, b"Expect: 100-continue")[: -len(body)])
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_http_1_0_gets_no_chunks(proxy: str) -> None:
    data = request(b"GET", b"/v1/models").replace(b"HTTP/1.1", b"HTTP/1.0")
    head, _, body = raw(proxy, data).partition(b"\r\n\r\n")
    assert b"chunked" not in head and json.loads(body)["data"][0]["id"] == MODEL


def test_a_head_request_has_no_body(proxy: str, node: FakeNode) -> None:
    response = httpx2.head(f"{proxy}/v1/models")
    assert response.status_code == 401 or not response.content
    assert node.opened[-1].request.method == "HEAD"


def test_hop_by_hop_headers_of_an_answer_stay_behind(proxy: str, node: FakeNode) -> None:
    node.head_headers = (("connection", "close"), ("transfer-encoding", "gzip"), ("x-kept", "yes"))
    response = httpx2.get(f"{proxy}/v1/models")
    assert response.headers["x-kept"] == "yes" and response.headers["transfer-encoding"] == "chunked"


def test_it_does_not_open_for_a_node_that_fails(node: FakeNode) -> None:
    node.missing_layers = ("seccomp",)
    with pytest.raises(VerificationFailed), proxy_to(node.url):
        pass


def test_the_command_serves_and_ends_cleanly(node: FakeNode) -> None:
    command = [sys.executable, "-m", "cloister", "proxy", node.url, "--port", "0", "--allow-software-tee"]
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = [process.stdout.readline() for _ in range(6)]
            (url,) = [line.split()[1] for line in lines if line.startswith("API")]
            with sdk(url.removesuffix("/v1")) as client:
                assert client.models.list().data
                process.send_signal(number)
                assert process.wait(60) == 0
            assert "software TEE" in process.stderr.read()
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()


def test_an_answer_under_way_may_end_before_it_stops(node: FakeNode) -> None:
    node.words, node.pause_s = ("so ",) * 20, 0.05
    with proxy_to(node.url) as url:
        client = sdk(url)
        events = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        next(events)
        answer: list[str] = []
        reader = threading.Thread(target=lambda: answer.extend(e.choices[0].delta.content or "" for e in events))
        reader.start()
    reader.join()
    client.close()
    assert "".join(answer) == "so " * 19
