"""The proxy's connections to the node: HTTP/1.1 kept alive, one sealed message at a time, opened as it arrives.

A general HTTP client costs more per streamed token than the rest of the proxy; this one parses (httptools), opens and
passes on all that one read brought. It knows frames and sockets, not what is asked or answered.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Protocol, cast

import httptools

from cloister.addresses import HttpAddress
from cloister.channel.envelope import InnerHead
from cloister.client.address import tls_to
from cloister.client.message import (
    ENDPOINT,
    MAX_REFUSAL_BYTES,
    OUTER_HEADERS,
    Refusal,
    SealedAnswer,
    SealedMessage,
    is_sealed,
    read_refusal,
)
from cloister.errors import ChannelBroken, ServiceUnavailable

CONNECT_S = 10.0
_END_S = 1.0
_MAX_HEAD_BYTES = 64 * 1024
_READ_HEADERS = frozenset((b"content-type", b"retry-after", b"connection"))


class Listener(Protocol):
    """Who waits for an answer."""

    def begin(self, head: InnerHead) -> None: ...

    def opened(self, data: bytes, ended: bool) -> None:
        """More of the body, and whether that was all: authenticated, both."""


class NeverAnswered(ServiceUnavailable):
    """The node closed the connection before it answered anything: a kept one may have been closed all along."""


class Upstream(asyncio.Protocol):
    """One connection."""

    def __init__(self, address: HttpAddress) -> None:
        head = [f"POST {address.path(ENDPOINT)} HTTP/1.1", f"Host: {address.authority}"]
        head += [f"{name}: {value}" for name, value in OUTER_HEADERS]
        self._head = "\r\n".join((*head, "Content-Length: ")).encode("ascii")
        self._transport: asyncio.Transport | None = None
        self._listener: Listener | None = None
        self.used = False

    @classmethod
    async def open(cls, address: HttpAddress, tls: ssl.SSLContext | None) -> Upstream:
        """Connect; ServiceUnavailable when nobody listens there."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(lambda: cls(address), address.host, address.port, ssl=tls)
        except (OSError, TimeoutError):
            raise ServiceUnavailable(f"Nothing answers at {address}.") from None
        return connection

    @property
    def usable(self) -> bool:
        """Whether another message may be sent."""
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, message: SealedMessage, listener: Listener) -> Refusal | None:
        """Send the message, pass on its answer; the refusal, where it was refused in the clear.

        Raises ChannelBroken whenever the answer, or the rest of it, cannot be believed.
        """
        if self._transport is None:
            raise NeverAnswered("The node closed the connection.")
        self._parser = httptools.HttpResponseParser(self)
        self._answer = SealedAnswer(message.opener, message.winnower)
        self._listener = listener
        self._bodies: list[bytes] = []
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._status = 0
        self._sealed = self._complete = self._ended = False
        self._clear = b""
        self._over = asyncio.get_running_loop().create_future()
        self._transport.writelines((self._head, b"%d\r\n\r\n" % len(message.envelope), message.envelope))
        try:
            await self._over
            if not self._complete:
                await self._http_end()
        finally:
            self._listener = None
            self._answer.close()
            self.used = True
            if not self._complete or self._headers.get(b"connection", b"").lower() == b"close":
                self.abort()
        if self._sealed:
            return None
        return read_refusal(self._status, self._headers.get(b"retry-after", b"").decode("latin-1"), self._clear)

    def pause(self) -> None:
        """Read no more for now: whoever waits for the answer cannot keep up."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection; the node then stops what it was asked on it."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _http_end(self) -> None:
        """The sealed answer is whole; wait a moment for HTTP's own end, so that the connection can be used again."""
        self._over = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError, ServiceUnavailable, ChannelBroken):
            async with asyncio.timeout(_END_S):
                await self._over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._listener is None:
            self.abort()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
            if not self._status:
                self._before_head(len(data))
            if self._bodies:
                self._take(self._bodies[0] if len(self._bodies) == 1 else b"".join(self._bodies))
        except httptools.HttpParserError:
            self._end(ChannelBroken("The node's answer is not proper HTTP."))
        except ChannelBroken as broken:
            self._end(broken)
        else:
            if self._ended or self._complete:
                self._end(None if self._ended or not self._sealed else _cut_off())

    def connection_lost(self, reason: Exception | None) -> None:
        self._transport = None
        if self._listener is None:
            return
        self._end(_cut_off() if self._status else NeverAnswered("The node closed the connection without an answer."))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MAX_HEAD_BYTES:
            raise ValueError("the head does not end")
        if (lower := name.lower()) in _READ_HEADERS:
            self._headers[lower] = value

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()
        self._sealed = is_sealed(self._status, self._headers.get(b"content-type", b"").decode("latin-1"))

    def on_body(self, body: bytes) -> None:
        self._bodies.append(body)

    def on_message_complete(self) -> None:
        if self._status >= 200:
            self._complete = True

    def _before_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:  # the parser gathers a header until it ends
            raise ChannelBroken("The head of the node's answer does not end.")

    def _take(self, body: bytes) -> None:
        self._bodies.clear()
        if not self._sealed:
            self._clear += body[: MAX_REFUSAL_BYTES - len(self._clear)]
            return
        begun = self._answer.head is not None
        opened = self._answer.feed(body)
        self._ended = self._answer.ended
        listener = self._listener
        if listener is None:
            return
        if not begun and self._answer.head is not None:
            listener.begin(self._answer.head)
        if opened or self._ended:
            listener.opened(opened, self._ended)

    def _end(self, error: Exception | None) -> None:
        if self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._complete = False
            self._over.set_exception(error)


class UpstreamPool:
    """Connections to one node, kept while nobody uses them."""

    def __init__(self, address: HttpAddress) -> None:
        self._address = address
        self._tls = tls_to(address) if address.scheme == "https" else None
        self._idle: list[Upstream] = []

    async def take(self) -> Upstream:
        """A connection that was open just now, or a new one."""
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return await self.open()

    async def open(self) -> Upstream:
        return await Upstream.open(self._address, self._tls)

    def give_back(self, connection: Upstream) -> None:
        if connection.usable:
            self._idle.append(connection)

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()


def _cut_off() -> ChannelBroken:
    return ChannelBroken("The answer was cut off before its authenticated end.", hint="Send the request again.")
