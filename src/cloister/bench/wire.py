"""Reads one HTTP/1.1 response from bytes, whatever the pieces they arrive in. Knows nothing of sockets or of SSE.

A general HTTP client costs hundreds of microseconds for each streamed token on the cores that the measured server
also needs; this one costs a few (RFC 9112 sections 6 and 7: chunked, counted or closed bodies).
"""

from __future__ import annotations

from cloister.errors import ProtocolError

MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNK_BYTES = 16 * 1024 * 1024


class ResponseParser:
    """Feed it bytes, get the body's bytes; `complete` turns true at the response's end."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._pending = b""
        self._chunked = False
        self._left: int | None = None

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        asked_to_close = self.headers.get("connection", "").lower() == "close"
        return self.complete and not asked_to_close and not self._ends_with_connection

    def feed(self, data: bytes) -> bytes:
        """The body's bytes that are now readable."""
        if self._pending:
            data, self._pending = self._pending + data, b""
        if not self.status:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > MAX_HEAD_BYTES:
                    raise ProtocolError("The response's head does not end.")
                self._pending = data
                return b""
            self._read_head(data[:end])
            data = data[end + 4 :]
            if not self.status:  # an interim 1xx response: the real one follows
                return self.feed(data)
        return self._unchunk(data) if self._chunked else self._count(data)

    def connection_closed(self) -> None:
        """The peer closed: that is the end of a body of unknown length, and an error for any other."""
        if self.status and self._ends_with_connection:
            self.complete = True

    @property
    def _ends_with_connection(self) -> bool:
        return not self._chunked and self._left is None

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError("The server does not speak HTTP/1.1.")
        status = int(rest[:3])
        if status < 200:
            return
        self.status = status
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._chunked = self.headers.get("transfer-encoding", "").lower().endswith("chunked")
        if status in (204, 304):
            self._left = 0
        elif not self._chunked and "content-length" in self.headers:
            length = self.headers["content-length"]
            if not length.isdigit():
                raise ProtocolError("The server sent an impossible Content-Length.")
            self._left = int(length)
        self.complete = self._left == 0

    def _count(self, data: bytes) -> bytes:
        if self._left is None:
            return data
        data = data[: self._left]
        self._left -= len(data)
        self.complete = self._left == 0
        return data

    def _unchunk(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        while (line_end := data.find(b"\r\n", at)) >= 0:
            try:
                size = int(data[at:line_end].partition(b";")[0], 16)
            except ValueError:
                raise ProtocolError("The server sent a malformed chunk.") from None
            if not 0 <= size <= MAX_CHUNK_BYTES:
                raise ProtocolError("The server sent a chunk of an impossible size.")
            if size == 0:
                if (end := data.find(b"\r\n\r\n", line_end)) >= 0:
                    self.complete = True
                    at = end + 4
                break
            start, stop = line_end + 2, line_end + 2 + size
            if len(data) < stop + 2:
                break
            pieces.append(data[start:stop])
            at = stop + 2
        self._pending = data[at:]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
