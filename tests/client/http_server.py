"""A small real HTTP/1.1 server in a thread, for made-up nodes and for who stands between. Keeps what it got."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    raw: bytes


@dataclass
class Reply:
    """`body` is sent chunk by chunk; where it raises ConnectionAbortedError, the connection ends there and then."""

    status: int
    content_type: str
    body: AsyncIterator[bytes]
    headers: dict[str, str] = field(default_factory=dict)
    sized: int | None = None


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def reply(status: int, data: bytes, content_type: str = "application/json", **headers: str) -> Reply:
    return Reply(status, content_type, once(data), {name.replace("_", "-"): each for name, each in headers.items()})


Handler = Callable[[Received], Awaitable[Reply]]


@dataclass
class Server:
    url: str = ""
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    cancelled: int = 0
    """Answers that the other side did not wait for."""
    writers: set[asyncio.StreamWriter] = field(default_factory=set)
    readers: list[asyncio.StreamReader] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop | None = None
    listening: asyncio.Server | None = None

    def drop_connections(self) -> None:
        """As a server does that closes what was idle too long."""
        self._do(lambda: [writer.transport.abort() for writer in self.writers])

    def vanish(self) -> None:
        """As a server that is killed: nobody listens, every connection is gone."""
        assert self.listening is not None
        self._do(self.listening.close)
        self.drop_connections()

    def _do(self, what: Callable[[], object]) -> None:
        assert self.loop is not None
        done = threading.Event()

        def do() -> None:
            what()
            done.set()

        self.loop.call_soon_threadsafe(do)
        done.wait()


@contextmanager
def http_server(handler: Handler, port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server()
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()
    failures: list[BaseException] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        server.writers.add(writer)
        server.readers.append(reader)
        try:
            while True:
                received = await _read(reader)
                server.received.append(received)
                await _answer(await handler(received), reader, writer)
        except ConnectionAbortedError:
            writer.transport.abort()
        except (asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except (ConnectionError, TimeoutError):
            server.cancelled += 1
        finally:
            server.writers.discard(writer)
            writer.close()

    async def run() -> None:
        try:
            listening = await asyncio.start_server(connection, "127.0.0.1", port, ssl=tls)
            server.loop, server.listening = loop, listening
            server.url = f"http{'s' if tls else ''}://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            started.set()
        await stop.wait()
        listening.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait()
    try:
        assert not failures
        yield server
    finally:
        if not failures:
            loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, head + body)


async def _answer(answer: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = [f"HTTP/1.1 {answer.status} X", f"Content-Type: {answer.content_type}"]
    lines += [f"{name}: {value}" for name, value in answer.headers.items()]
    lines.append("Transfer-Encoding: chunked" if answer.sized is None else f"Content-Length: {answer.sized}")
    writer.write("\r\n".join((*lines, "", "")).encode())
    async for piece in answer.body:
        if piece:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if answer.sized is None else piece)
            await writer.drain()
        if reader.at_eof():
            raise ConnectionResetError("nobody waits")
    if answer.sized is None:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
