"""Binary HTTP (RFC 9292): whole messages in known length, and messages that grow in indeterminate length. Decoding is
bounded and strict, and allows what §3.8 does: a message may stop before a section that is empty."""

import re
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeVar

from cloister.errors import ChannelBroken

Fields = tuple[tuple[str, str], ...]
MAX_FIELDS = 128
MAX_SECTION_BYTES = 64 * 1024
MAX_INFORMATIONAL = 8
_MAX_NUMBER = (1 << 62) - 1
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # in lower case, as in HTTP/2 (RFC 9113 §8.2.1)
_VALUE = re.compile(r"(?![ \t])[^\x00-\x08\x0a-\x1f\x7f]*(?<![ \t])|")
_METHOD = re.compile(r"[A-Z]{3,16}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}")
_AUTHORITY = re.compile(r"[!-~]{0,256}")
_PATH = re.compile(r"/[!-~]{0,2047}|\*")
_KNOWN_REQUEST, _KNOWN_RESPONSE, _REQUEST, _RESPONSE = range(4)


class RequestHead(NamedTuple):
    method: str
    scheme: str
    authority: str
    path: str
    headers: Fields = ()


class ResponseHead(NamedTuple):
    """With a status below 200 it is informational, and another head follows."""

    status: int
    headers: Fields = ()


class Trailers(NamedTuple):
    fields: Fields


Head = RequestHead | ResponseHead
Event = RequestHead | ResponseHead | Trailers | bytes


class Message(NamedTuple):
    head: Head
    content: bytes = b""
    trailers: Fields = ()
    informational: tuple[ResponseHead, ...] = ()

    def __repr__(self) -> str:
        return f"Message({len(self.content)} bytes)"  # never what a user wrote


def varint(number: int) -> bytes:
    """RFC 9000 §16."""
    for log in range(4):
        if number < 1 << (8 << log) - 2:
            return (number | log << (8 << log) - 2).to_bytes(1 << log, "big")
    raise ChannelBroken("A number is too large for Binary HTTP.")


def encode(message: Message, *, known: bool = True, padding: int = 0) -> bytes:
    if known:
        pieces = [_control(message.informational, message.head, known=True)]
        pieces += (varint(len(message.content)), message.content, _known_fields(message.trailers))
    else:
        pieces = [begin(message.head, message.informational), chunk(message.content), end(message.trailers)]
    return b"".join((*pieces, bytes(padding)))


def begin(head: Head, informational: Sequence[ResponseHead] = ()) -> bytes:
    """The beginning of a message in indeterminate length; then `chunk` by `chunk`, and an `end`."""
    return _control(informational, head, known=False)


def chunk(data: bytes) -> bytes:
    return varint(len(data)) + data if data else b""


def end(trailers: Fields = ()) -> bytes:
    return b"\0" + _lines(trailers) + b"\0"


def _control(informational: Sequence[ResponseHead], head: Head, *, known: bool) -> bytes:
    def section(fields: Fields) -> bytes:
        return _known_fields(fields) if known else _lines(fields) + b"\0"

    if isinstance(head, RequestHead):
        if informational:
            raise ChannelBroken("A request has no informational heads.")
        _check_request(head)
        framing = _KNOWN_REQUEST if known else _REQUEST
        line = b"".join(_counted(part.encode("ascii")) for part in head[:4])
        return bytes((framing,)) + line + section(head.headers)
    heads = (*informational, head)
    if [_class(one.status) for one in heads] != [True] * len(informational) + [False]:
        raise ChannelBroken("A response has informational heads first, and then one other.")
    framing = _KNOWN_RESPONSE if known else _RESPONSE
    return bytes((framing,)) + b"".join(varint(one.status) + section(one.headers) for one in heads)


def _class(status: int) -> bool:
    """Whether the status is informational."""
    if not 100 <= status <= 599:
        raise ChannelBroken("A response has a status that HTTP does not know.")
    return status < 200


def _known_fields(fields: Fields) -> bytes:
    return _counted(_lines(fields))


def _lines(fields: Fields) -> bytes:
    for name, value in fields:
        _check_field(name, value)
    return b"".join(_counted(name.encode("ascii")) + _counted(value.encode("latin-1")) for name, value in fields)


def _counted(data: bytes) -> bytes:
    return varint(len(data)) + data


def _check_field(name: str, value: str) -> None:
    if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or (not value.isascii() and max(value) > "\xff"):
        raise ChannelBroken("A field is not what HTTP allows.")


def _check_request(head: RequestHead) -> None:
    parts = zip((_METHOD, _SCHEME, _AUTHORITY, _PATH), head[:4], strict=True)
    if not all(allowed.fullmatch(part) for allowed, part in parts):
        raise ChannelBroken("A request's method, scheme, authority or path is not what HTTP allows.")


def decode(data: bytes, most_content: int) -> Message:
    """A whole message, or ChannelBroken."""
    decoder = Decoder(most_content)
    events = decoder.feed(data) + decoder.finish()
    heads = [event for event in events if isinstance(event, RequestHead | ResponseHead)]
    informational = tuple(one for one in heads[:-1] if isinstance(one, ResponseHead))
    trailers = next((event.fields for event in events if isinstance(event, Trailers)), ())
    return Message(heads[-1], b"".join(one for one in events if isinstance(one, bytes)), trailers, informational)


Got = TypeVar("Got")
_Steps = Generator[None, None, Got]


class Decoder:
    """A message as it comes: its heads, then content in pieces, then trailers. After an error it takes nothing more."""

    def __init__(self, most_content: int) -> None:
        self._left = most_content
        self._buffer = bytearray()
        self._taken = 0
        self._ended = self.done = False
        self._events: list[Event] = []
        self._steps = self._message()

    def feed(self, data: bytes) -> list[Event]:
        self._buffer += data
        return self._advance()

    def finish(self) -> list[Event]:
        """Nothing more comes: ChannelBroken unless the message is whole."""
        self._ended = True
        events = self._advance()
        if not self.done:
            raise ChannelBroken("A Binary HTTP message broke before.")
        return events

    def _advance(self) -> list[Event]:
        try:
            next(self._steps, None)
        except BaseException:
            self._buffer.clear()
            raise
        events, self._events = self._events, []
        return events

    # Each step yields when it needs more bytes.

    def _message(self) -> _Steps[None]:
        framing = yield from self._number()
        if framing > _RESPONSE:
            raise ChannelBroken("A Binary HTTP message has a framing that is not known.")
        known = framing in (_KNOWN_REQUEST, _KNOWN_RESPONSE)
        if framing in (_KNOWN_REQUEST, _REQUEST):
            yield from self._request(known)
        else:
            yield from self._response(known)
        if not (yield from self._at_end()):
            yield from self._content(known)
        if trailers := (yield from self._fields(known)):
            self._events.append(Trailers(trailers))
        while not (yield from self._at_end()):
            if any(self._buffer):
                raise ChannelBroken("The padding of a Binary HTTP message is not zero.")
            self._buffer.clear()
        self.done = True

    def _request(self, known: bool) -> _Steps[None]:
        parts = []
        for most in (16, 32, 256, 2048):
            parts.append((yield from self._text(most)))
        head = RequestHead(parts[0], parts[1], parts[2], parts[3])
        _check_request(head)
        headers = yield from self._fields(known)
        self._events.append(head._replace(headers=headers))

    def _response(self, known: bool) -> _Steps[None]:
        for _ in range(MAX_INFORMATIONAL + 1):
            informational = _class(status := (yield from self._number()))
            headers = yield from self._fields(known)
            self._events.append(ResponseHead(status, headers))
            if not informational:
                return
        raise ChannelBroken("A response has too many informational heads.")

    def _content(self, known: bool) -> _Steps[None]:
        while length := (yield from self._number()):
            if length > self._left:
                raise ChannelBroken("The content of a Binary HTTP message is too long.")
            self._left -= length
            while length:
                if (yield from self._at_end()):
                    raise _cut()
                piece = yield from self._take(min(length, len(self._buffer)))
                self._events.append(piece)
                length -= len(piece)
            if known:
                return

    def _fields(self, known: bool) -> _Steps[Fields]:
        """A field section; none where the message ends before it (§3.8)."""
        fields: list[tuple[str, str]] = []
        if (yield from self._at_end()):
            return ()
        start, most = self._taken, MAX_SECTION_BYTES
        if known:
            length = yield from self._number()
            start = self._taken
            if length > most:
                raise ChannelBroken("A field section is too long.")
            most = length
        while not known or self._taken - start < most:
            if not (size := (yield from self._number())):
                if known:
                    raise ChannelBroken("A field has no name.")
                break
            room = most - (self._taken - start)
            if size > room or len(fields) >= MAX_FIELDS:
                raise ChannelBroken("A field section is too long, or ends within a field.")
            name = (yield from self._take(size)).decode("latin-1")
            value = yield from self._text(most - (self._taken - start))
            _check_field(name, value)
            fields.append((name, value))
            if self._taken - start > most:
                raise ChannelBroken("A field section is too long, or ends within a field.")
        return tuple(fields)

    def _text(self, most: int) -> _Steps[str]:
        if (size := (yield from self._number())) > most:
            raise ChannelBroken("A part of a Binary HTTP message is too long.")
        return (yield from self._take(size)).decode("latin-1")

    def _number(self) -> _Steps[int]:
        first = (yield from self._take(1))[0]
        rest = yield from self._take((1 << (first >> 6)) - 1)
        return int.from_bytes(bytes((first & 0x3F,)) + rest, "big")

    def _take(self, size: int) -> _Steps[bytes]:
        while len(self._buffer) < size:
            if self._ended:
                raise _cut()
            yield
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._taken += size
        return taken

    def _at_end(self) -> _Steps[bool]:
        while not self._buffer and not self._ended:
            yield
        return not self._buffer


def _cut() -> ChannelBroken:
    return ChannelBroken("A Binary HTTP message was cut off.")
