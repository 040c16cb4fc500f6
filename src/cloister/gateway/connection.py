"""A user's connection: uvicorn's, which is a wire too. It knows HTTP's framing, not what is said."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cloister.gateway.reading import read_in_small_pieces
from cloister.gateway.wire import SCOPE, Wire


class WiredConnection(HttpToolsProtocol, Wire):
    """uvicorn's connection as a wire. Whatever uses it announces no length: bodies are chunked (RFC 9112 §7.1)."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        read_in_small_pieces(transport)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast(dict[str, object], self.scope)[SCOPE] = self

    @property
    def free(self) -> bool:
        return not (self.flow.write_paused or self.transport.is_closing())

    def write(self, data: bytes) -> None:
        self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
