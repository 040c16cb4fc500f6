from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from fastapi import FastAPI

from cloister.access.tokens import Token, authorization
from cloister.config import GatewaySettings
from cloister.errors import PromptTooLong
from cloister.gateway import guard
from cloister.gateway.app import create_app
from cloister.gateway.completions import answer_tokens
from tests.gateway.fakes import CONTEXT, KEY, LEVELS, MODEL, ByteTokenizer, FakeBackend, chat_body, served

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}


def test_answer_tokens_of_an_unread_prompt() -> None:
    assert answer_tokens(None, None, 16, 100) == 16
    assert answer_tokens(None, None, 1024, 100) == 99, "the context is all there is, and a prompt takes some"
    assert answer_tokens(None, 99, 16, 100) == answer_tokens(None, 5000, 16, 100) == 99


def test_answer_tokens() -> None:
    assert answer_tokens(10, None, 16, 100) == 16
    assert answer_tokens(90, None, 16, 100) == 10
    assert answer_tokens(90, 10, 16, 100) == 10
    assert answer_tokens(90, 11, 16, 100) == answer_tokens(90, 5000, 16, 100) == 10
    assert answer_tokens(100, 0, 16, 100) == 0
    for prompt, asked in ((100, None), (101, 0), (5000, 1)):
        with pytest.raises(PromptTooLong, match=f"has {prompt} tokens; .* may have 100"):
            answer_tokens(prompt, asked, 16, 100)


async def test_an_answer_ends_with_the_context_at_every_level(http: httpx.AsyncClient) -> None:
    """A prompt that leaves room for ten tokens is served, however many are asked for; one that leaves none is not."""
    for level in LEVELS:
        body = {"model": MODEL, "max_tokens": 500, "ignore_eos": True, "protection": level}
        short = await http.post("/v1/completions", json={**body, "prompt": [97] * (CONTEXT - 10)})
        assert short.json()["usage"]["completion_tokens"] == 10
        assert short.json()["choices"][0]["finish_reason"] == "length"
        full = await http.post("/v1/completions", json={**body, "prompt": [97] * CONTEXT})
        assert full.status_code == 400 and full.json()["error"]["code"] == "context_length_exceeded"


async def test_the_largest_body_passes_and_one_byte_more_does_not(http: httpx.AsyncClient) -> None:
    raw = json.dumps(chat_body()).encode()
    fits = raw + b" " * (64 * 1024 - len(raw))
    assert (await http.post(CHAT, content=fits, headers=JSON)).status_code == 200
    response = await http.post(CHAT, content=fits + b" ", headers=JSON)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "body_too_large"


def test_a_chunked_upload_is_cut_off_too(url: str, backend: FakeBackend) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(80):
            yield b" " * 1024

    response = httpx.post(f"{url}{CHAT}", content=endless(), headers={**KEY, **JSON})
    assert response.status_code == 413
    assert not backend.submitted


@pytest.mark.parametrize("name", ["localhost", "attacker.example"])
@pytest.mark.parametrize("key", [KEY["Authorization"], "Bearer wrong"])
def test_an_endless_upload_ends(url: str, name: str, key: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {name}\r\nAuthorization: {key}\r\n"
        peer.sendall((head + "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").encode())
        with pytest.raises(OSError):
            while True:
                peer.sendall(b"400\r\n" + b" " * 1024 + b"\r\n")


async def test_a_body_that_does_not_come_is_not_waited_for(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "BODY_TIMEOUT_S", 0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    response = await http.post(CHAT, content=stuck(), headers=JSON)
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "body_timeout"


@pytest.fixture
def hasty(backend: FakeBackend) -> FastAPI:
    settings = GatewaySettings(request_timeout_s=0.3)
    return create_app(backend, ByteTokenizer(), MODEL, settings, created=1)


def test_a_request_that_takes_too_long_is_ended(hasty: FastAPI, backend: FakeBackend) -> None:
    with served(hasty) as url:
        backend.pause = 30
        for stream in (False, True):
            response = httpx.post(f"{url}{CHAT}", json=chat_body(stream=stream), headers=KEY)
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "request_timeout"
        assert _until(lambda: backend.open == 0)
        backend.pause, backend.ends = 0.01, False
        statuses = []
        while statuses[-1:] != [200] and len(statuses) < 50:  # a busy machine may be too late with the first token
            response = httpx.post(f"{url}{CHAT}", json=chat_body(stream=True), headers=KEY)
            statuses.append(response.status_code)
        assert set(statuses) <= {200, 504} and statuses[-1] == 200
        assert '"code":"request_timeout"' in response.text.split("\n\n")[-2]
        # Before a busy gateway submits, nothing needs cancelling.
        assert _until(lambda: backend.open == 0 and backend.cancelled >= 1)


def test_a_client_that_reads_nothing_does_not_outlive_the_deadline(hasty: FastAPI, backend: FakeBackend) -> None:
    backend.ends, backend.answer, backend.step = False, "x" * 200_000, 2000
    backend.generate = _flooding(backend)  # type: ignore[method-assign]
    with served(hasty) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(chat_body(stream=True, protection="open")).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {KEY['Authorization']}\r\n"
        with socket.create_connection((host, int(port))) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            assert _until(lambda: backend.cancelled == 1 and backend.open == 0)


def _flooding(backend: FakeBackend):  # type: ignore[no-untyped-def]
    """More tokens than were asked for, without end: only the deadline can stop them."""
    original = backend.generate

    async def generate(tenant, prompt, params):  # type: ignore[no-untyped-def]
        import msgspec

        return await original(tenant, prompt, msgspec.structs.replace(params, max_tokens=10**8))

    return generate


def _until(condition) -> bool:  # type: ignore[no-untyped-def]
    import time

    for _ in range(2000):
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("level", ["open", "partitioned"])
async def test_a_token_pays_for_so_much_text_and_a_key_for_more(
    http: httpx.AsyncClient, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spend(token: bytes) -> None: ...

    monkeypatch.setattr(backend, "spend", spend)
    body = {"model": MODEL, "prompt": "a" * 100, "max_tokens": CONTEXT // 2, "ignore_eos": True}
    fits, beyond = {**body, "n": 31}, {**body, "n": 32}
    paid = {"Authorization": authorization(Token(bytes(32), bytes(32), bytes(32), bytes(256)))}
    for headers, status in ((paid, 400), ({}, 200)):
        assert (await http.post("/v1/completions", json=beyond, headers=headers)).status_code == status
    assert (await http.post("/v1/completions", json=fits, headers=paid)).status_code == 200
    wide = {"model": MODEL, "prompt": ["a" * (CONTEXT - 1)] * 17, "max_tokens": 1}
    refused = await http.post("/v1/completions", json=wide, headers=paid)
    assert "pays for" in refused.json()["error"]["message"] and refused.json()["error"]["param"] == "max_tokens"
