"""Requests of local programs, out of the bytes they sent: HTTP/1.1 by httptools, with limits. Knows no sockets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import httptools

from cloister.channel.sealing import MAX_PLAINTEXT_BYTES
from cloister.client.answer import Refusal

MAX_HEAD_BYTES = 64 * 1024
_HEADER_BYTES = 4
_NOT_HTTP = Refusal(400, "That is not proper HTTP.", "invalid_request")
_HEAD_TOO_LARGE = Refusal(431, f"A head may have at most {MAX_HEAD_BYTES} bytes.", "head_too_large")
_BODY_TOO_LARGE = Refusal(413, f"A body may have at most {MAX_PLAINTEXT_BYTES} bytes.", "body_too_large")


class Request(NamedTuple):
    """One request of a local program."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes = b""
    keep_alive: bool = True
    chunks: bool = True
    """Whether the program understands an answer in chunks."""

    def values(self, name: str) -> list[str]:
        """What the headers of this name say."""
        return [value for each, value in self.headers if each.lower() == name]


class Unreadable(Exception):
    """What came is no request, or too large a one; nothing after it can be read."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class RequestReader:
    """Feed it bytes, get requests. `go_on` is called where a program waits for leave to send its body."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._parser = httptools.HttpRequestParser(self)
        self._whole: list[Request] = []
        self._too_large: Refusal | None = None
        self._fed = 0
        self._in_head = False

    def feed(self, data: bytes) -> list[Request]:
        """The requests that are whole now; Unreadable if there can be no more."""
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
        """Parse; what is left to parse after an offer to speak something else."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("this is no tunnel") from None
            return self._without_offer() + data[offer.args[0] :]
        return b""

    def _without_offer(self) -> bytes:
        """The head as if nothing else had been offered, as RFC 9110 §7.8 allows, for a parser to read anew."""
        lines = [f"{self._parser.get_method().decode()} {self._path.decode('latin-1')} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self._headers if name.lower() != "upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        return "\r\n".join((*lines, "", "")).encode("latin-1")

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
        self._whole.append(
            Request(
                self._parser.get_method().decode("ascii"),
                self._path.decode("latin-1"),
                tuple(self._headers),
                bytes(self._body),
                self._parser.should_keep_alive(),
                self._parser.get_http_version() == "1.1",
            )
        )

    def _count(self, size: int) -> None:
        self._head_bytes += size + _HEADER_BYTES
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = _HEAD_TOO_LARGE
            raise ValueError("too large")
