"""The proxy's connections to local programs: requests in, opened answers out, several frames in one write.

It knows HTTP and who may ask: programs of this machine, and no web page that made a name of its own lead here. What
becomes of a request is the proxy's affair.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import cast
from urllib.parse import urlsplit

from cloister.channel.envelope import InnerHead
from cloister.client.address import names_this_machine
from cloister.client.answer import Refusal
from cloister.client.local_request import Request, RequestReader, Unreadable
from cloister.client.message import HOP_BY_HOP
from cloister.client.upstream import Upstream

_PORT = re.compile(r":\d+$")
_LAST_CHUNK = b"0\r\n\r\n"
_MAX_WAITING = 8
"""Requests that may wait for the one at hand. Reading goes on meanwhile: else nobody would notice a program leave."""
_UNREAD = Request("", "", (), keep_alive=False)

Handle = Callable[[Request, "Downstream"], Awaitable[None]]


class Downstream(asyncio.Protocol):
    """One connection of a program; answers one request after the other."""

    def __init__(self, handle: Handle, lost: Callable[[Downstream], None]) -> None:
        self._handle = handle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._reader = RequestReader(lambda: self._write(b"HTTP/1.1 100 Continue\r\n\r\n"))
        self._waiting: deque[Request] = deque()
        self._request = _UNREAD
        self._task: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._begun = self._chunked = self._keep_alive = False

    @property
    def begun(self) -> bool:
        """Whether the answer's head is out, so that no other can be given."""
        return self._begun

    @property
    def task(self) -> asyncio.Task[None] | None:
        """What answers the request at hand."""
        return self._task

    def begin(self, head: InnerHead) -> None:
        """Send the head of the answer to the request at hand."""
        self._begun = True
        kept = [f"{name}: {value}" for name, value in head.headers if name.lower() not in HOP_BY_HOP]
        bodiless = self._request.method == "HEAD" or head.status in (204, 304) or head.status < 200
        sized = bodiless or any(name.lower() == "content-length" for name, _ in head.headers)
        self._chunked = not sized and self._request.chunks
        if self._chunked:
            kept.append("transfer-encoding: chunked")
        elif not sized:
            self._keep_alive = False  # only the connection's end can tell the body's
        if not self._keep_alive:
            kept.append("connection: close")
        lines = (f"HTTP/1.1 {head.status} {_phrase(head.status)}", *kept, "", "")
        self._write("\r\n".join(lines).encode("latin-1", "replace"))

    def opened(self, data: bytes, ended: bool) -> None:
        """Send more of the body, in one write."""
        if self._request.method == "HEAD":
            return
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
            self._waiting += self._reader.feed(data)
        except Unreadable as wrong:
            self._give_up(wrong.refusal)
            return
        if self._waiting and self._task is None:
            self._next()
        elif len(self._waiting) > _MAX_WAITING and self._transport is not None:
            self._transport.pause_reading()

    def _next(self) -> None:
        self._request = request = self._waiting.popleft()
        self._keep_alive = request.keep_alive
        self._begun = False
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

    def _give_up(self, refusal: Refusal) -> None:
        """Nothing more can be read here: say why, unless an answer is under way, and close."""
        if self._task is None:
            self._request, self._keep_alive = _UNREAD, False
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
