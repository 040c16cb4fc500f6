"""The proxy's connections to local programs: HTTP/1.1 in, opened answers out, several frames in one write.

It knows HTTP and who may ask: programs of this machine, and no web page that made a name of its own lead here. What
becomes of a request is the proxy's affair.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from cloister.client.address import names_this_machine
from cloister.client.answer import Refusal
from cloister.client.message import HOP_BY_HOP
from cloister.client.upstream import Upstream
from cloister.transport.inner import InnerHead
from cloister.transport.sealing import MAX_PLAINTEXT_BYTES

MAX_HEAD_BYTES = 64 * 1024
_PORT = re.compile(r":\d+$")
_LAST_CHUNK = b"0\r\n\r\n"


class Request(NamedTuple):
    """One request of a local program."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """What the headers of this name say."""
        return [value for each, value in self.headers if each.lower() == name]


Handle = Callable[[Request, "Downstream"], Awaitable[None]]


class Downstream(asyncio.Protocol):
    """One connection of a program; answers one request after the other."""

    _http_1_1 = True
    _too_large: Refusal | None = None

    def __init__(self, handle: Handle, lost: Callable[[Downstream], None]) -> None:
        self._handle = handle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._begun = self._chunked = self._keep_alive = self._bare = False
        self._start()

    @property
    def begun(self) -> bool:
        """Whether the answer's head is out, so that no other can be given."""
        return self._begun

    @property
    def busy(self) -> bool:
        return self._task is not None

    def begin(self, head: InnerHead) -> None:
        """Send the head of the answer to the request at hand."""
        self._begun = True
        bodiless = self._bare or head.status in (204, 304) or head.status < 200
        kept = [f"{name}: {value}" for name, value in head.headers if name.lower() not in HOP_BY_HOP]
        counted = any(name.lower() == "content-length" for name, _ in head.headers)
        self._chunked = not (counted or bodiless) and self._http_1_1
        if self._chunked:
            kept.append("transfer-encoding: chunked")
        elif not (counted or bodiless):
            self._keep_alive = False
        if not self._keep_alive:
            kept.append("connection: close")
        lines = (f"HTTP/1.1 {head.status} {_phrase(head.status)}", *kept, "", "")
        self._write("\r\n".join(lines).encode("latin-1", "replace"))

    def opened(self, data: bytes, ended: bool) -> None:
        """Send more of the body, in one write."""
        if self._bare:
            data = b""
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = chunk + _LAST_CHUNK if ended else chunk
        if data:
            self._write(data)

    def refuse(self, refusal: Refusal) -> None:
        """Answer in the node's stead."""
        self.begin(InnerHead(refusal.status, refusal.headers))
        self.opened(refusal.body, ended=True)

    def flows_from(self, upstream: Upstream | None) -> None:
        """Where the answer comes from, to be slowed down if the program does not keep up."""
        self._upstream = upstream

    def abort(self) -> None:
        """End the connection in the middle of an answer, so that nobody takes it for whole."""
        if self._transport is not None:
            self._transport.abort()

    def close_when_idle(self) -> None:
        """Take no more requests; an answer under way may end."""
        self._keep_alive = False
        self._waiting.clear()
        if self._task is None and self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        self._lost(self)

    def pause_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.pause()

    def resume_writing(self) -> None:
        if self._upstream is not None:
            self._upstream.resume()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse_and_close(Refusal(426, "This proxy speaks HTTP/1.1 only.", "upgrade_refused"))
        except httptools.HttpParserError:
            wrong = Refusal(400, "That is not proper HTTP.", "invalid_request")
            self._refuse_and_close(self._too_large or wrong)

    def on_message_begin(self) -> None:
        self._start()

    def on_url(self, url: bytes) -> None:
        self._path += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        if any(name.lower() == "expect" and value.lower() == "100-continue" for name, value in self._headers):
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_PLAINTEXT_BYTES:
            self._too_large = Refusal(413, f"A body may have at most {MAX_PLAINTEXT_BYTES} bytes.", "body_too_large")
            raise ValueError("too large")

    def on_message_complete(self) -> None:
        request = Request(
            self._parser.get_method().decode("ascii"),
            self._path.decode("latin-1"),
            tuple(self._headers),
            bytes(self._body),
        )
        self._waiting.append((request, self._parser.should_keep_alive()))
        if self._task is None:
            self._next()

    def _start(self) -> None:
        self._path, self._body = b"", bytearray()
        self._headers: list[tuple[str, str]] = []
        self._head_bytes = 0
        self._too_large = None

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = Refusal(431, f"A head may have at most {MAX_HEAD_BYTES} bytes.", "head_too_large")
            raise ValueError("too large")

    def _next(self) -> None:
        request, self._keep_alive = self._waiting.popleft()
        self._begun = False
        self._bare = request.method == "HEAD"
        self._http_1_1 = self._parser.get_http_version() == "1.1"
        if self._transport is not None:
            self._transport.pause_reading()  # one at a time: what is sent meanwhile waits in the socket
        self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            if (foreign := refusal_of_strangers(request)) is not None:
                self.refuse(foreign)
            else:
                await self._handle(request, self)
        finally:
            self._task = None
            self._upstream = None
            self._after_answer()

    def _after_answer(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not (self._keep_alive and self._begun):
            self._transport.close()
        elif self._waiting:
            self._next()
        else:
            self._transport.resume_reading()

    def _refuse_and_close(self, refusal: Refusal) -> None:
        if self._task is None:
            self._keep_alive = self._bare = False
            self._http_1_1 = True
            self.refuse(refusal)
        if self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def refusal_of_strangers(request: Request) -> Refusal | None:
    """Refuse what a web page could make a browser send: another host's name (DNS rebinding), or a page's origin."""
    hosts = request.values("host")
    if len(hosts) != 1 or not names_this_machine(_PORT.sub("", hosts[0]).strip("[]")):
        return Refusal(403, "This proxy answers to localhost only. Use 127.0.0.1 in the URL.", "foreign_host")
    for origin in request.values("origin"):
        if not names_this_machine(urlsplit(origin).hostname or ""):
            return Refusal(403, "This proxy does not answer to web pages of other hosts.", "foreign_origin")
    return None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Answer"
