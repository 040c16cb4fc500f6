"""One sealed request, big-endian: "CLOI" ‖ version u8 ‖ key id (8) ‖ enc (32) ‖ part count u16 ‖ parts (u32 length ‖
bytes): HTTP as msgpack, valid by the *node's* clock, then prompts."""

import struct
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta, Struct

from cloister.channel import sealing
from cloister.channel.sealing import ENC_BYTES, KEY_ID_BYTES, MAX_PLAINTEXT_BYTES, ChannelKey, key_id
from cloister.channel.stream import MAX_FRAME_DATA, FrameKind, StreamOpener, StreamSealer
from cloister.errors import ChannelBroken, ChannelKeyUnknown, MessageExpired

VALID_S = 15  # Of a small request: connecting and waiting in a busy gateway are within it.
BYTES_PER_S = 1 << 17  # A large one has a second more for each of these: slow lines need them.
MOST_VALID_S = 120  # A node takes no request that claims to be good for longer.
CLOCKS_MAY_DIFFER_S = 2
_LATEST_MS = 1 << 53


class Validity(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Milliseconds since 1970 by the node's clock, and a span. The default has long expired."""

    sealed_ms: Annotated[int, Meta(ge=0, lt=_LATEST_MS)] = 0
    for_ms: Annotated[int, Meta(ge=0, lt=_LATEST_MS)] = 0

    @classmethod
    def beginning(cls, now_ms: int, size: int) -> Self:
        return cls(now_ms, 1000 * min(VALID_S + size // BYTES_PER_S, MOST_VALID_S))

    def check(self, now_ms: int) -> None:
        age_s, span_s = (now_ms - self.sealed_ms) / 1000, min(self.for_ms / 1000, MOST_VALID_S)
        if age_s > span_s + CLOCKS_MAY_DIFFER_S:
            hint = "It was held back on its way, or the node's clock changed: verify the node and seal it again."
            raise MessageExpired("The sealed request is too old to be served.", hint=hint)
        if age_s < -CLOCKS_MAY_DIFFER_S:
            hint = "The node's clock was set back: verify it and seal the request again."
            raise MessageExpired("The sealed request is not valid yet.", hint=hint)


CONTENT_TYPE = "application/cloister-sealed"
VERSION = 2
MAX_PROMPTS = 128
MAX_ENVELOPE_BYTES = 32 << 20
_MAGIC = b"CLOI"
_HEADER = struct.Struct(f">4sB{KEY_ID_BYTES}s{ENC_BYTES}sH")
_LENGTH = struct.Struct(">I")
_SMALLEST_PART = sealing.SMALLEST_BYTES + sealing.TAG_BYTES


@dataclass(frozen=True, slots=True, repr=False)
class Envelope:
    key_id: bytes
    enc: bytes
    request: bytes
    prompts: tuple[bytes, ...] = ()

    def encode(self) -> bytes:
        if len(self.key_id) != KEY_ID_BYTES or len(self.enc) != ENC_BYTES:
            raise ChannelBroken(f"A key id has {KEY_ID_BYTES} bytes and an encapsulated key {ENC_BYTES}.")
        parts = (self.request, *self.prompts)
        pieces = [_HEADER.pack(_MAGIC, VERSION, self.key_id, self.enc, _counted(len(parts)))]
        for part in parts:
            pieces += (_LENGTH.pack(len(part)), part)
        encoded = b"".join(pieces)
        _check_size(len(encoded))
        return encoded

    @classmethod
    def decode(cls, data: bytes) -> Self:
        _check_size(len(data))
        if len(data) < _HEADER.size:
            raise ChannelBroken("A sealed request ends within its header.")
        magic, version, key_id, enc, count = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ChannelBroken("This is not a sealed request.", hint="Send it with a Cloister client.")
        if version != VERSION:
            raise ChannelBroken(f"The sealed request has version {version}, not {VERSION}.", hint="Update the client.")
        request, *prompts = _parts(data, _counted(count))
        return cls(key_id, enc, request, tuple(prompts))


def _parts(data: bytes, count: int) -> list[bytes]:
    parts: list[bytes] = []
    at = _HEADER.size
    for _ in range(count):
        if len(data) - at < _LENGTH.size:
            raise ChannelBroken("A sealed request ends before its last part.")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if not _SMALLEST_PART <= length <= len(data) - at:
            raise ChannelBroken("A part of a sealed request announces a length that cannot be.")
        parts.append(bytes(data[at : at + length]))
        at += length
    if at != len(data):
        raise ChannelBroken("A sealed request goes on after its last part.")
    return parts


def _counted(count: int) -> int:
    if not 1 <= count <= MAX_PROMPTS + 1:
        raise ChannelBroken(f"A sealed request has a request and at most {MAX_PROMPTS} prompts, not {count} parts.")
    return count


def _check_size(size: int) -> None:
    if size > MAX_ENVELOPE_BYTES:
        hint = "Send a shorter prompt."
        raise ChannelBroken(f"A sealed request may have at most {MAX_ENVELOPE_BYTES} bytes, not {size}.", hint=hint)


MAX_HEADERS = 64
Method = Annotated[str, Meta(pattern=r"^[A-Z]{3,7}\Z")]
Path = Annotated[str, Meta(pattern=r"^/[!-~]*\Z", max_length=2048)]
HeaderName = Annotated[str, Meta(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}\Z")]
HeaderValue = Annotated[str, Meta(pattern=r"^[^\x00-\x08\x0a-\x1f\x7f]*\Z", max_length=8192)]
Headers = Annotated[tuple[tuple[HeaderName, HeaderValue], ...], Meta(max_length=MAX_HEADERS)]


class _Inner(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    most_bytes: ClassVar[int]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) > cls.most_bytes:
            raise ChannelBroken(f"A sealed message may have at most {cls.most_bytes} bytes, not {len(data)}.")
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: text that is not UTF-8
            hint = "Client and node may be of other versions."
            raise ChannelBroken("A sealed message does not decode.", hint=hint) from None


class InnerRequest(_Inner, frozen=True):
    """An HTTP request. `path` has the query in it; no header can hide a line break."""

    most_bytes = MAX_PLAINTEXT_BYTES
    method: Method
    path: Path
    headers: Headers = ()
    body: Annotated[bytes, Meta(max_length=MAX_PLAINTEXT_BYTES)] = b""
    validity: Validity = Validity()

    def __repr__(self) -> str:
        return f"InnerRequest({len(self.body)} bytes)"  # never what a user wrote


class InnerHead(_Inner, frozen=True):
    most_bytes = MAX_FRAME_DATA
    status: Annotated[int, Meta(ge=100, le=599)]
    headers: Headers = ()


MAX_RELEASE_BYTES = 4096
_INFO = b"cloister weights key v1"
_TAKEN = b"taken"


class Release(NamedTuple):
    message: bytes
    opener: StreamOpener

    def confirm(self, answer: bytes) -> None:
        """ChannelBroken unless the holder of the channel key says that it took the key."""
        frames = self.opener.feed(answer)
        self.opener.finish()
        if frames[0].kind is not FrameKind.HEAD or frames[0].data != _TAKEN:
            raise ChannelBroken("The node's answer does not say that it took the key.")


def release_to(channel_key: bytes, content_key: bytes) -> Release:
    """The content key, sealed to the holder of this channel key. Verify the node's evidence first."""
    enc, keys = sealing.address_to(channel_key, info=_INFO)
    sealed = sealing.seal_request(keys.request, enc, content_key)
    opener = StreamOpener(bytearray(keys.response), enc)
    keys.erase()
    return Release(Envelope(key_id(channel_key), enc, sealed).encode(), opener)


def receive_release(channel_key: ChannelKey, message: bytes) -> tuple[bytearray, bytes]:
    """The content key, and the answer to send once it proved to be the right one; or ChannelBroken."""
    if len(message) > MAX_RELEASE_BYTES:
        raise ChannelBroken(f"A key release has at most {MAX_RELEASE_BYTES} bytes.")
    envelope = Envelope.decode(message)
    if envelope.key_id != channel_key.key_id:
        raise ChannelKeyUnknown("This node does not hold the key the release was sealed to.", hint="Verify it again.")
    if envelope.prompts:
        raise ChannelBroken("A key release holds no prompts.")
    keys = channel_key.accept(envelope.enc, info=_INFO)
    try:
        content_key = bytearray(sealing.open_request(keys.request, envelope.enc, envelope.request))
        if len(content_key) != sealing.KEY_BYTES:
            raise ChannelBroken(f"A content key has {sealing.KEY_BYTES} bytes, not {len(content_key)}.")
        sealer = StreamSealer(keys.response, envelope.enc)
        return content_key, sealer.head(_TAKEN) + sealer.end()
    finally:
        keys.erase()
