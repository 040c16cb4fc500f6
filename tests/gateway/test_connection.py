"""Heads that are slow or large, and connections without end: none of them costs the others anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from cloister.config import GatewaySettings
from cloister.gateway import server as connection
from cloister.gateway.server import MAX_HEAD_BYTES, MAX_HEADERS, Connections, _Server, serve

GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving(monkeypatch: pytest.MonkeyPatch, **settings: int) -> AsyncIterator[int]:
    """A server with these limits; its port."""
    servers: list[_Server] = []
    monkeypatch.setattr(_Server, "capture_signals", lambda self: (servers.append(self), nullcontext())[1])
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, GatewaySettings(port=0, **settings), url.set_result))
    yield int((await url).rsplit(":", 1)[1])
    servers[0].should_exit = True
    await task


async def connected(port: int, *said: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in said:
        writer.write(piece)
        await writer.drain()
    return reader, writer


async def answer(streams: Streams) -> tuple[int, str | None]:
    """The status and, of an error, its code; 0 where the connection was cut without a word."""
    with suppress(ConnectionError):
        head = await asyncio.wait_for(streams[0].readuntil(b"\r\n\r\n"), 10)
        status = int(head.split()[1])
        body = await asyncio.wait_for(streams[0].read(2 if status == 200 else -1), 10)
        return status, None if status == 200 else json.loads(body)["error"]["code"]
    return 0, None


async def test_requests_are_answered_one_after_the_other_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch) as port:
        streams = await connected(port)
        for _ in range(3):
            streams[1].write(GET + b"content-length: 70000\r\n\r\n" + b"x" * 70_000)  # a body is no part of a head
            assert await answer(streams) == (200, None)
        streams[1].close()


@pytest.mark.parametrize(
    "head",
    [
        b"x-long: " + b"x" * (MAX_HEAD_BYTES + 1),
        b"x-long: " + b"x" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"".join(b"x-%d: y\r\n" % number for number in range(MAX_HEADERS + 1)) + b"\r\n",
        (b"x-many: " + b"y" * 1000 + b"\r\n") * (MAX_HEAD_BYTES // 1000 + 1) + b"\r\n",
    ],
    ids=["endless line", "long line", "many lines", "many long lines"],
)
async def test_a_large_head_is_refused_before_it_is_whole(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    async with serving(monkeypatch) as port:
        assert await answer(await connected(port, GET + head)) == (431, "head_too_large")
        long_path = b"GET /" + b"x" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\n"
        assert await answer(await connected(port, long_path)) == (431, "head_too_large")
        assert await answer(await connected(port, b"nonsense\r\n\r\n")) == (400, "invalid_http")


async def test_a_slow_head_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    async with serving(monkeypatch) as port:
        assert await answer(await connected(port, GET)) == (408, "head_timeout")
        silent = await connected(port)
        assert await asyncio.wait_for(silent[0].read(), 5) == b""
        second = await connected(port, GET + b"\r\n")
        assert await answer(second) == (200, None)
        second[1].write(b"GET / HT")  # the head of a later request counts too
        assert await answer(second) == (408, "head_timeout")


async def test_silent_connections_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(monkeypatch, max_connections=8) as port:
        crowd = [await connected(port, GET) for _ in range(20)]
        for _ in range(5):
            streams = await connected(port, GET + b"\r\n")
            assert await answer(streams) == (200, None)
            streams[1].close()
        for _, writer in crowd:
            writer.close()


def test_one_address_may_not_have_all() -> None:
    limits = Connections(most=10, most_of_one=3)
    for _ in range(3):
        assert limits.admit("192.0.2.1")
        limits.add("192.0.2.1")
    assert not limits.admit("192.0.2.1") and limits.admit("192.0.2.2")
    limits.remove("192.0.2.1")
    assert limits.admit("192.0.2.1")
    for _ in range(5):
        assert limits.admit("127.0.0.1"), "a proxy speaks for many"
        limits.add("127.0.0.1")
