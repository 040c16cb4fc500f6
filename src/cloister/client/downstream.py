"""The proxy's connections to local programs: requests in (HTTP/1.1 by httptools, with limits), opened answers out. Web
pages whose host name leads here (DNS rebinding) are refused."""

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.client import responses
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import httptools

from cloister.addresses import is_loopback
from cloister.channel.envelope import InnerHead
from cloister.channel.sealing import MAX_PLAINTEXT_BYTES
from cloister.client.message import HOP_BY_HOP, Refusal

MAX_HEAD_BYTES = 64 * 1024
_HEADER_BYTES = 4
_NOT_HTTP = Refusal(400, "This is not proper HTTP.", "invalid_request")
_HEAD_TOO_LARGE = Refusal(431, f"A head may have at most {MAX_HEAD_BYTES} bytes.", "head_too_large")
_BODY_TOO_LARGE = Refusal(413, f"A body may have at most {MAX_PLAINTEXT_BYTES} bytes.", "body_too_large")


class Request(NamedTuple):
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    keep_alive: bool = True
    chunks: bool = True  # Whether the program understands an answer in chunks.

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name]


@dataclass(eq=False)
class Unreadable(Exception):
    """What came is no request, or too large a one; nothing after it can be read."""

    refusal: Refusal


class RequestReader:
    """Feed it bytes, get requests. `go_on` is called for a program that waits for `100 Continue`."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._parser = httptools.HttpRequestParser(self)
        self._whole: list[Request] = []
        self._too_large: Refusal | None = None
        self._fed = 0
        self._in_head = False

    def feed(self, data: bytes) -> list[Request]:
        self._fed += len(data)
        try:
            while data:
                data = self._parse(data)
        except httptools.HttpParserError:
            raise Unreadable(self._too_large or _NOT_HTTP) from None
        if self._in_head and self._fed > MAX_HEAD_BYTES:
            raise Unreadable(_HEAD_TOO_LARGE)  # the parser gathers a header until it ends
        whole, self._whole = self._whole, []
        return whole

    def _parse(self, data: bytes) -> bytes:
        """What is to be read again: an offered upgrade's head without the offer, which RFC 9110 §7.8 lets us ignore."""
        try:
            self._parser.feed_data(data)
            return b""
        except httptools.HttpParserUpgrade as offer:
            method, rest = self._parser.get_method().decode(), data[offer.args[0] :]
        if method == "CONNECT":
            raise httptools.HttpParserError("this is no tunnel")
        lines = [f"{method} {self._path.decode('latin-1')} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers if name.lower() != "upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        return "\r\n".join((*lines, "", "")).encode("latin-1") + rest

    def on_message_begin(self) -> None:
        self._path, self._body = b"", bytearray()
        self._headers: list[tuple[str, str]] = []
        self._head_bytes = 0
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        self._path += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._fed, self._in_head = 0, False
        if any(name.lower() == "expect" and value.lower() == "100-continue" for name, value in self._headers):
            self._go_on()

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > MAX_PLAINTEXT_BYTES:
            self._too_large = _BODY_TOO_LARGE
            raise ValueError("too large")

    def on_message_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        parser, path = self._parser, self._path.decode("latin-1")
        method, headers = parser.get_method().decode("ascii"), tuple(self._headers)
        keep_alive, chunks = parser.should_keep_alive(), parser.get_http_version() == "1.1"
        self._whole.append(Request(method, path, headers, bytes(self._body), keep_alive, chunks))

    def _count(self, size: int) -> None:
        self._head_bytes += size + _HEADER_BYTES
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = _HEAD_TOO_LARGE
            raise ValueError("too large")


_PORT = re.compile(r":\d+$")
_LAST_CHUNK = b"0\r\n\r\n"
_MAX_WAITING = 8  # requests; reading goes on meanwhile, to notice that the program leaves
_UNREAD = Request("", "", (), keep_alive=False)
Handle = Callable[[Request, "Downstream"], Awaitable[None]]


class Downstream(asyncio.Protocol):
    """Answers one request after the other. `begun`: the answer's head is out, so that no other can be given."""

    def __init__(self, handle: Handle, lost: Callable[["Downstream"], None]) -> None:
        self._handle = handle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(lambda: self._write(b"HTTP/1.1 100 Continue\r\n\r\n"))
        self._waiting: deque[Request] = deque()
        self._request = _UNREAD
        self.task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.begun = self._chunked = self._keep_alive = False

    def begin(self, head: InnerHead) -> None:
        self.begun = True
        kept = [f"{name}: {value}" for name, value in head.headers if name.lower() not in HOP_BY_HOP]
        bodiless = self._request.method == "HEAD" or head.status in (204, 304) or head.status < 200
        sized = bodiless or any(name.lower() == "content-length" for name, _ in head.headers)
        self._chunked = not sized and self._request.chunks
        if self._chunked:
            kept.append("transfer-encoding: chunked")
        elif not sized:
            self._keep_alive = False  # the end of the connection marks the end of the body
        if not self._keep_alive:
            kept.append("connection: close")
        lines = (f"HTTP/1.1 {head.status} {responses.get(head.status, 'Answer')}", *kept, "", "")
        self._write("\r\n".join(lines).encode("latin-1", "replace"))

    def opened(self, data: bytes, ended: bool) -> None:
        if self._request.method == "HEAD":
            return
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = chunk + _LAST_CHUNK if ended else chunk
        if data:
            self._write(data)

    async def drain(self) -> None:
        await self._writable.wait()

    def refuse(self, refusal: Refusal) -> None:
        self.begin(InnerHead(refusal.status, refusal.headers))
        self.opened(refusal.body, ended=True)

    def abort(self) -> None:
        """End the connection in the middle of an answer, so that the program does not take it for whole."""
        if self._transport is not None:
            self._transport.abort()

    def close_when_idle(self) -> None:
        self._keep_alive = False
        self._waiting.clear()
        if self.task is None and self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        if self.task is not None:
            self.task.cancel()
        self._lost(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._waiting += self._reader.feed(data)
        except Unreadable as wrong:
            if self.task is None:  # no answer is under way: say why
                self._request, self._keep_alive = _UNREAD, False
                self.refuse(wrong.refusal)
            if self._transport is not None:
                self._transport.close()
            return
        if self._waiting and self.task is None:
            self._next()
        elif len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()

    def _next(self) -> None:
        self._request = request = self._waiting.popleft()
        self._keep_alive = request.keep_alive
        self.begun = False
        self.task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        try:
            if (foreign := refuse_foreign(request)) is not None:
                self.refuse(foreign)
            else:
                await self._handle(request, self)
        finally:
            self.task = None
            self._after_answer()

    def _after_answer(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not (self._keep_alive and self.begun):
            self._transport.close()
        elif self._waiting:
            self._next()
        else:
            self._transport.resume_reading()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


def refuse_foreign(request: Request) -> Refusal | None:
    """Refuse what a web page could make a browser send: another host's name (DNS rebinding), or a page's origin."""
    hosts = request.values("host")
    if len(hosts) != 1 or not is_loopback(_PORT.sub("", hosts[0]).strip("[]")):
        return Refusal(403, "This proxy answers to localhost only. Use 127.0.0.1 in the URL.", "foreign_host")
    for origin in request.values("origin"):
        if not is_loopback(urlsplit(origin).hostname or ""):
            return Refusal(403, "This proxy does not answer to web pages of other hosts.", "foreign_origin")
    return None
