"""The proxy's connections to local programs (HTTP/1.1 by h11). Refuses web pages by DNS rebinding."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from http.client import responses
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import h11

from cloister.addresses import is_loopback
from cloister.channel.envelope import InnerHead
from cloister.channel.sealing import MAX_PLAINTEXT_BYTES
from cloister.client.message import HOP_BY_HOP, Refusal

MAX_HEAD_BYTES = 64 * 1024
_HEADER_BYTES = 4  # beside its name and value
_MAX_WAITING_BYTES = 64 * 1024  # of later requests; reading goes on meanwhile, to notice that the program leaves
_NOT_HTTP = Refusal(400, "This is not proper HTTP.", "invalid_request")
_HEAD_TOO_LARGE = Refusal(431, f"A head may have at most {MAX_HEAD_BYTES} bytes.", "head_too_large")
_BODY_TOO_LARGE = Refusal(413, f"A body may have at most {MAX_PLAINTEXT_BYTES} bytes.", "body_too_large")
_PORT = re.compile(r":\d+$")


class Request(NamedTuple):
    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each.lower() == name]


Handle = Callable[[Request, "Downstream"], Awaitable[None]]


class Downstream(asyncio.Protocol):
    """Answers one request after the other. `begun`: the answer's head is out, so that no other can be given."""

    def __init__(self, handle: Handle, lost: Callable[["Downstream"], None]) -> None:
        self._handle = handle
        self._lost = lost
        self._transport: asyncio.Transport | None = None
        self._wire = h11.Connection(h11.SERVER, MAX_HEAD_BYTES)
        self._request, self._body = Request("", "", ()), bytearray()
        self.task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._last = self.begun = False

    def begin(self, head: InnerHead) -> None:
        self.begun = True
        ours = ((name, value) for name, value in head.headers if name.lower() not in HOP_BY_HOP)
        kept = [(name.encode("ascii"), value.strip().encode("latin-1", "replace")) for name, value in ours]
        if self._last:
            kept.append((b"connection", b"close"))
        reason = responses.get(head.status, "Answer")
        self._send(h11.Response(status_code=head.status, headers=kept, reason=reason))

    def opened(self, data: bytes, ended: bool) -> None:
        if data and self._request.method != "HEAD":
            self._send(h11.Data(data=data))
        if ended:
            self._send(h11.EndOfMessage())

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
        self._last = True
        if self.task is None and self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        if self.task is not None:
            self.task.cancel()
        self._lost(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._wire.receive_data(data)
        if self.task is None:
            self._read()
        elif len(self._wire.trailing_data[0]) > _MAX_WAITING_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def _read(self) -> None:
        """What has come, up to the end of a request, which is answered before more is read."""
        try:
            while True:
                match self._wire.next_event():
                    case h11.Request() as head:
                        self._begin_request(head)
                    case h11.Data(data=data):
                        self._body += data
                        if len(self._body) > MAX_PLAINTEXT_BYTES:
                            return self._refuse_rest(_BODY_TOO_LARGE)
                    case h11.EndOfMessage():
                        request = self._request = self._request._replace(body=bytes(self._body))
                        self.task = asyncio.get_running_loop().create_task(self._answer(request))
                        return None
                    case _:  # more is needed, or nothing more will come
                        return None
        except h11.RemoteProtocolError as wrong:
            self._refuse_rest(_HEAD_TOO_LARGE if wrong.error_status_hint == 431 else _NOT_HTTP)

    def _begin_request(self, head: h11.Request) -> None:
        headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
        size = len(head.target) + sum(len(name) + len(value) + _HEADER_BYTES for name, value in head.headers)
        if size > MAX_HEAD_BYTES:
            raise h11.RemoteProtocolError("it came whole, and is too large all the same", error_status_hint=431)
        names = {name for name, _ in head.headers}
        if head.method == b"CONNECT" or {b"content-length", b"transfer-encoding"} <= names:
            raise h11.RemoteProtocolError("a tunnel, or a body of two lengths")
        self._request = Request(head.method.decode("ascii"), head.target.decode("latin-1"), headers)
        self._body = bytearray()
        self.begun = False
        if self._wire.they_are_waiting_for_100_continue:
            self._send(h11.InformationalResponse(status_code=100, headers=[], reason="Continue"))

    def _refuse_rest(self, refusal: Refusal) -> None:
        """Nothing after this can be read."""
        self._request, self._last = Request("", "", ()), True
        self.refuse(refusal)
        if self._transport is not None:
            self._transport.close()

    async def _answer(self, request: Request) -> None:
        try:
            if (foreign := refuse_foreign(request)) is not None:
                self.refuse(foreign)
            else:
                await self._handle(request, self)
        except h11.LocalProtocolError:  # the answer's headers contradict each other or its body
            self.abort()
        finally:
            self.task = None
            self._after_answer()

    def _after_answer(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._last and self._wire.our_state is self._wire.their_state is h11.DONE:
            self._wire.start_next_cycle()
            self._transport.resume_reading()
            self._read()
        else:
            self._transport.close()

    def _send(self, event: h11.Event) -> None:
        if (data := self._wire.send(event)) and self._transport is not None:
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
