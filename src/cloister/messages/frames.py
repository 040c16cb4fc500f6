"""Length-prefixed msgpack frames of one typed union. A bad or long one raises ProtocolError: the stream is dead."""

import struct
from typing import Generic, TypeVar

import msgspec

from cloister.errors import ProtocolError

MAX_FRAME_BYTES = 16 * 1024 * 1024
_LENGTH = struct.Struct("<I")
Message = TypeVar("Message", bound=msgspec.Struct)


def encode_frame(messages: tuple[msgspec.Struct, ...]) -> bytes:
    body = msgspec.msgpack.encode(messages)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"A message of {len(body)} bytes exceeds the limit of {MAX_FRAME_BYTES}.")
    return _LENGTH.pack(len(body)) + body


def encode_frames(messages: tuple[msgspec.Struct, ...]) -> bytes:
    """As few as hold all. ProtocolError for a message that fits into none: the sender splits messages that grow."""
    try:
        return encode_frame(messages)
    except ProtocolError:
        if len(messages) == 1:
            raise
    middle = len(messages) // 2
    return encode_frames(messages[:middle]) + encode_frames(messages[middle:])


class FrameReader(Generic[Message]):
    def __init__(self, union: object) -> None:
        self._decoder: msgspec.msgpack.Decoder[tuple[Message, ...]] = msgspec.msgpack.Decoder(tuple[union, ...])  # type: ignore[valid-type]
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        at = 0
        while len(self._buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, at)
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"A frame announces {length} bytes; the limit is {MAX_FRAME_BYTES}.")
            start, end = at + _LENGTH.size, at + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            body = bytes(self._buffer[start:end])
            at = end
            try:
                messages.extend(self._decoder.decode(body))
            except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:  # ValueError: text that is not UTF-8
                raise ProtocolError(f"A frame does not decode: {type(wrong).__name__}.") from None
        if at:  # a new one: a bytearray keeps the memory of what is deleted from its front
            self._buffer = self._buffer[at:]
        return messages
