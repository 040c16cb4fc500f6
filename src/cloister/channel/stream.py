"""The answer: salt (32) ‖ frames (u32 length ‖ AES-256-GCM under nonce = its number), each kind u8 ‖ u32 true length ‖
data ‖ zeros up to a bucket. HEAD comes once, then DATA, then END."""

import secrets
import struct
from enum import IntEnum
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from cloister.channel.sealing import KEY_BYTES, TAG_BYTES, nonce_of, padded
from cloister.errors import ChannelBroken

SALT_BYTES = 32
MAX_PLAINTEXT_BYTES = 1 << 16  # Of one frame, padding and all; more data goes into more frames.
_INFO = b"cloister response stream v1"
_LENGTH = struct.Struct(">I")
_PREFIX = struct.Struct(">BI")
MAX_FRAME_DATA = MAX_PLAINTEXT_BYTES - _PREFIX.size
_SMALLEST_FRAME = padded(0) + TAG_BYTES
_LARGEST_FRAME = MAX_PLAINTEXT_BYTES + TAG_BYTES
_HINT = "The answer is not whole: send the request again."


class FrameKind(IntEnum):
    HEAD = 1
    DATA = 2
    END = 3


class Frame(NamedTuple):
    kind: FrameKind
    data: bytes


_KINDS = {int(kind): kind for kind in FrameKind}
_HEAD, _DATA, _END = FrameKind.HEAD, FrameKind.DATA, FrameKind.END


class StreamSealer:
    """Seals one answer. Takes the response key over: it is erased as soon as the stream's own is derived."""

    def __init__(self, response_key: bytes | bytearray, enc: bytes) -> None:
        self._unsent = salt = secrets.token_bytes(SALT_BYTES)
        self._aead: AESGCM | None = _stream_aead(response_key, enc, salt)
        self._number = 0

    def head(self, data: bytes) -> bytes:
        if self._number:
            raise ChannelBroken("A stream has one head.")
        if len(data) > MAX_FRAME_DATA:
            raise ChannelBroken(f"A head may have at most {MAX_FRAME_DATA} bytes, not {len(data)}.")
        salt, self._unsent = self._unsent, b""
        return salt + self._frame(_HEAD, data)

    def data(self, *pieces: bytes) -> bytes:
        if not self._number:
            raise ChannelBroken("A stream begins with its head.")
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) <= MAX_FRAME_DATA:
            return self._frame(_DATA, data) if data else b""
        cuts = range(0, len(data), MAX_FRAME_DATA)
        return b"".join([self._frame(_DATA, data[cut : cut + MAX_FRAME_DATA]) for cut in cuts])

    def end(self) -> bytes:
        """The last bytes to send. The key is gone afterwards."""
        if not self._number:
            raise ChannelBroken("A stream begins with its head.")
        last = self._frame(_END, b"")
        self._aead = None
        return last

    def _frame(self, kind: FrameKind, data: bytes) -> bytes:
        if self._aead is None:
            raise ChannelBroken("Nothing can be sealed after the end.")
        length = len(data)
        size = _PREFIX.size + length
        plaintext = b"".join((_PREFIX.pack(kind, length), data, bytes(padded(size) - size)))
        sealed = self._aead.encrypt(nonce_of(self._number), plaintext, None)
        self._number += 1
        return _LENGTH.pack(len(sealed)) + sealed


class StreamOpener:
    """What was altered, left out, repeated, moved or cut off raises ChannelBroken. Takes the key over and erases it."""

    def __init__(self, response_key: bytes | bytearray, enc: bytes) -> None:
        self._response_key = response_key
        self._enc = enc
        self._aead: AESGCM | None = None
        self._number = 0
        self._buffer = bytearray()
        self.ended = False
        self._dead = False

    def feed(self, data: bytes) -> list[Frame]:
        if self._dead:
            raise ChannelBroken("The stream broke before.", hint=_HINT)
        self._buffer += data
        try:
            return self._open_whole_frames()
        except ChannelBroken:
            self.close()
            raise

    def finish(self) -> None:
        """The sender closed: ChannelBroken unless an authentic END was seen."""
        complete = self.ended and not self._dead
        self.close()
        if not complete:
            raise ChannelBroken("The answer was cut off before its authenticated end.", hint=_HINT)

    def close(self) -> None:
        """Erase the keys and take nothing more. An answer that was not whole stays so."""
        self._dead = True
        self._forget()

    def _open_whole_frames(self) -> list[Frame]:
        buffer, at, frames = self._buffer, 0, []
        if self._aead is None and not self.ended:
            if len(buffer) < SALT_BYTES:
                return []
            self._aead = _stream_aead(self._response_key, self._enc, bytes(buffer[:SALT_BYTES]))
            at = SALT_BYTES
        while len(buffer) - at >= _LENGTH.size and not self.ended:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if not _SMALLEST_FRAME <= length <= _LARGEST_FRAME:
                raise ChannelBroken("A frame of the answer announces a length that cannot be.", hint=_HINT)
            start, at_end = at + _LENGTH.size, at + _LENGTH.size + length
            if len(buffer) < at_end:
                break
            frames.append(self._open(bytes(buffer[start:at_end])))
            at = at_end
        del buffer[:at]
        if self.ended and buffer:
            raise ChannelBroken("Something follows the answer's end.", hint=_HINT)
        return frames

    def _open(self, sealed: bytes) -> Frame:
        assert self._aead is not None
        try:
            plaintext = self._aead.decrypt(nonce_of(self._number), sealed, None)
        except InvalidTag:
            altered = "A frame of the answer was altered, left out or moved on its way."
            raise ChannelBroken(altered, hint=_HINT) from None
        number, length = _PREFIX.unpack_from(plaintext)
        kind = _KINDS.get(number)
        if kind is None or length > len(plaintext) - _PREFIX.size:
            raise ChannelBroken("A frame of the answer is malformed.", hint=_HINT)
        if (kind is _HEAD) != (self._number == 0) or (kind is _END and length):
            raise ChannelBroken("A frame of the answer is not in its place.", hint=_HINT)
        self._number += 1
        if kind is _END:
            self.ended = True
            self._forget()
        return Frame(kind, plaintext[_PREFIX.size : _PREFIX.size + length])

    def _forget(self) -> None:
        self._aead = None
        _erase(self._response_key)


def _stream_aead(response_key: bytes | bytearray, enc: bytes, salt: bytes) -> AESGCM:
    """The stream's AEAD. The response key is erased: nothing else may be derived from it."""
    key = bytearray(KEY_BYTES)
    HKDF(hashes.SHA256(), KEY_BYTES, salt=enc + salt, info=_INFO).derive_into(response_key, key)
    try:
        return AESGCM(key)
    finally:
        _erase(key)
        _erase(response_key)


def _erase(key: bytes | bytearray) -> None:
    if isinstance(key, bytearray):
        key[:] = bytes(len(key))
