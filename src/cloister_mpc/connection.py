"""A connection that carries messages: asyncio streams, typed frames, a deadline for every wait. Knows no meanings."""

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Self

import msgspec

from cloister.errors import ProtocolError
from cloister.link.network.address import Address
from cloister.messages.frames import FrameReader, encode_frame

MOST_UNREAD = 64 << 20


async def accepted(
    connection: socket.socket, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError (ssl.SSLError among them)."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class Connection:
    """One end. `receive` gives the next message, or None when the other end is gone."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, union: object) -> None:
        self._reader = reader
        self._writer = writer
        self._frames: FrameReader[msgspec.Struct] = FrameReader(union)
        self._waiting: list[msgspec.Struct] = []
        self._sending = asyncio.Lock()

    @classmethod
    async def open(cls, address: Address, tls: ssl.SSLContext, union: object, patience_s: float) -> Self:
        """Raises OSError (ssl.SSLError among them) or TimeoutError."""
        opening = asyncio.open_connection(str(address.host), address.port, ssl=tls)
        return cls(*await asyncio.wait_for(opening, patience_s), union)

    @property
    def tls(self) -> ssl.SSLObject:
        found: ssl.SSLObject = self._writer.get_extra_info("ssl_object")
        return found

    async def receive(self, patience_s: float | None = None) -> msgspec.Struct | None:
        """Raises ProtocolError for garbage, TimeoutError when no whole message has come by the deadline."""
        async with asyncio.timeout(patience_s):
            while not self._waiting:
                try:
                    data = await self._reader.read(1 << 18)
                except (OSError, asyncio.IncompleteReadError):
                    return None
                if not data:
                    return None
                self._waiting = self._frames.feed(data)
        return self._waiting.pop(0)

    def post(self, message: msgspec.Struct) -> None:
        """Sends without waiting, for small messages. A peer that does not read for too long is cut off."""
        if self._writer.is_closing():
            return
        self._writer.write(encode_frame((message,)))
        if self._writer.transport.get_write_buffer_size() > MOST_UNREAD:
            self.abort()

    async def send(self, message: msgspec.Struct) -> None:
        """Sends, and waits while the other end is slow. Raises ConnectionError when it is gone."""
        if self._writer.is_closing():
            raise ConnectionResetError
        self._writer.write(encode_frame((message,)))
        async with self._sending:
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        with suppress(OSError, ProtocolError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1.0)
