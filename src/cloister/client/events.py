"""A streamed answer of OpenAI's API (server-sent events, HTML standard §9.2.6), cut into positions: an event with
words, and those without words before it. Empty events are no positions: a server could otherwise find the real
stream."""

from __future__ import annotations

import json
import re
from typing import Any

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_LINE = re.compile(rb"\r\n|\n|\r")
_DONE = b"[DONE]"


class MalformedStream(Exception):
    """What came is no answer of OpenAI's API."""


class EventStream:
    """From an event with a finish reason on all goes into `rest`, handed over when all streams have ended."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.rest = bytearray()
        self.error: bytes | None = None
        self._ending = False
        self._unread = bytearray()

    def feed(self, data: bytes) -> int:
        """Take more of the body; how many positions that makes."""
        before, searched = len(self.pieces), max(0, len(self._unread) - 3)
        self._unread += data
        at = 0
        for end in _END.finditer(self._unread, searched):
            self._event(bytes(self._unread[at : end.end()]))
            at = end.end()
        del self._unread[:at]
        return len(self.pieces) - before

    def finish(self) -> None:
        """The body has ended; an event that was not whole is none."""
        self.rest += self._unread
        self._unread.clear()

    @property
    def body(self) -> bytes:
        return b"".join((*self.pieces, self.rest))

    def _event(self, event: bytes) -> None:
        content = _data(event)
        said: dict[str, Any] = {} if content in (b"", _DONE) else _object(content)
        if said.get("error"):
            self.error = self.error or event
        choices = _choices(said)
        self._ending |= content == _DONE or any(choice.get("finish_reason") for choice in choices)
        self.rest += event
        if any(map(_says, choices)):
            self.pieces.append(b"" if self._ending else bytes(self.rest))
            if not self._ending:
                self.rest.clear()


def _data(event: bytes) -> bytes:
    lines = [line[5:] for line in _LINE.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines).strip()


def _object(content: bytes) -> dict[str, Any]:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError):
        raise MalformedStream("an event is not JSON") from None
    if not isinstance(said, dict):
        raise MalformedStream("an event is not a JSON object")
    return said


def _choices(said: dict[str, Any]) -> list[dict[str, Any]]:
    choices = said.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
        raise MalformedStream("an event has choices that are none")
    return choices


def _says(choice: dict[str, Any]) -> bool:
    """Whether there is more in it than a role: words, or a part of a tool call."""
    delta = choice.get("delta")
    words = (value for name, value in delta.items() if name != "role") if isinstance(delta, dict) else ()
    return bool(choice.get("text")) or any(words)


def spoken(body: bytes, streamed: bool) -> list[str]:
    """The text of every choice of an answer, in their order; empty where an answer is no plain text."""
    try:
        events = [_data(event) for event in _END.split(body)] if streamed else [body]
        said: dict[int, str] = {}
        for event in events:
            if streamed and event in (b"", _DONE):
                continue
            for choice in json.loads(event).get("choices", ()):
                part = choice.get("delta" if streamed else "message") or {}
                words = part.get("content") or choice.get("text") or ""
                said[choice["index"]] = said.get(choice["index"], "") + words
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [said[index] for index in sorted(said)]
