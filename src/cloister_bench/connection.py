"""One user's keep-alive connection to a server, and what arrived on it when. Arrivals are read after the response's end
and parsed by httptools: httpx would take hundreds of microseconds a token from a server on the same cores."""

from __future__ import annotations

import asyncio
import socket
import ssl
from time import perf_counter
from typing import Literal

import httptools

from cloister.addresses import HttpAddress
from cloister.errors import ProtocolError

READ_BYTES = 16 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024


def on_free_port() -> HttpAddress:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return HttpAddress("http", "127.0.0.1", int(probe.getsockname()[1]))


class Exchange:
    """`arrivals` pairs the time of each piece of the body with it."""

    def __init__(self) -> None:
        self.status = 0
        self.arrivals: list[tuple[float, bytes]] = []
        self.complete = False
        self.reusable = False  # whether the connection may carry another request
        self._parser = httptools.HttpResponseParser(self)
        self._head_bytes = self._body_bytes = 0
        self._has_length = False
        self._now = self.sent = perf_counter()

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.arrivals)

    def feed(self, data: bytes) -> None:
        self._now = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise ProtocolError("The server does not speak HTTP/1.1.") from None
        self._head_bytes += 0 if self.status else len(data)
        if self._head_bytes > MAX_HEAD_BYTES or self._body_bytes > MAX_BODY_BYTES:
            raise ProtocolError("The server's response does not end.")

    def connection_closed(self) -> bool:
        """Whether the response is complete: closing ends a body of unknown length."""
        self.complete |= bool(self.status) and not self._has_length
        return self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by httptools, as are all that follow."""
        self._has_length |= name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0  # an interim 1xx response: the real one follows

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.arrivals.append((self._now, body))
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete, self.reusable = True, self._parser.should_keep_alive()


class Connection:
    """Sends one request at a time, until the server closes it or an exchange fails."""

    def __init__(
        self, address: HttpAddress, api_key: str | None, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._address = address
        self._authorization = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, address: HttpAddress, api_key: str | None = None) -> Connection:
        """Raises OSError if no server listens."""
        context = ssl.create_default_context() if address.scheme == "https" else None
        return cls(address, api_key, *await asyncio.open_connection(address.host, address.port, ssl=context))

    @property
    def usable(self) -> bool:
        return not self._writer.is_closing() and not self._reader.at_eof()

    async def exchange(self, method: Literal["GET", "POST", "DELETE"], endpoint: str, body: bytes = b"") -> Exchange:
        """Waits for the end of the response. OSError when the connection fails, ProtocolError when it is not HTTP."""
        head = (
            f"{method} {self._address.path(endpoint)} HTTP/1.1\r\nHost: {self._address.authority}\r\n"
            f"{self._authorization}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        exchange = Exchange()
        self._writer.write(head.encode("latin-1") + body)
        try:
            while not exchange.complete:
                if data := await self._reader.read(READ_BYTES):
                    exchange.feed(data)
                elif not exchange.connection_closed():
                    raise ConnectionResetError("closed before the response ended")
        finally:
            if not exchange.reusable:
                self.close()
        return exchange

    def close(self) -> None:
        """A server then stops what it was asked on it."""
        self._writer.transport.abort()


async def get(address: HttpAddress, endpoint: str, api_key: str | None) -> Exchange:
    connection = await Connection.open(address, api_key)
    try:
        return await connection.exchange("GET", endpoint)
    finally:
        connection.close()
