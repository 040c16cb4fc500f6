"""One sealed message: the inner request under the request key, each prompt under the prompt key.

AES-256-GCM. A key lives for one request, so nonces are plain numbers: 0 for the request, its index for a prompt; `enc`
is authenticated along. This module does not know what the bytes say.

What is sealed is padded to a bucket first: whoever sees only ciphertext learns which bucket a length falls into, and no
more. A bucket's size doubles up to `FINE_BYTES`; beyond, buckets are that far apart, so that padding never costs a
large message more than it costs a middling one.
"""

from __future__ import annotations

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cloister.errors import ChannelBroken

SMALLEST_BYTES = 512
"""An event of a streamed answer with one token in it fits, whatever the token."""
FINE_BYTES = 1 << 20


def padded(length: int) -> int:
    """The size of the bucket that holds `length` bytes."""
    if length <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    if length <= FINE_BYTES:
        return 1 << (length - 1).bit_length()
    return -(-length // FINE_BYTES) * FINE_BYTES


TAG_BYTES = 16
MAX_PLAINTEXT_BYTES = 16 << 20
"""Of one request or prompt, before padding."""

_LENGTH = struct.Struct(">I")
_REQUEST = b"cloister request\0"
_PROMPT = b"cloister prompt\0"


def seal_request(key: bytes | bytearray, enc: bytes, plaintext: bytes) -> bytes:
    """The inner request, padded and sealed under `RequestKeys.request`."""
    return _seal(key, 0, _REQUEST + enc, plaintext)


def open_request(key: bytes | bytearray, enc: bytes, sealed: bytes) -> bytes:
    """The inner request, or ChannelBroken."""
    return _open(key, 0, _REQUEST + enc, sealed, "The request")


def seal_prompt(key: bytes | bytearray, enc: bytes, index: int, plaintext: bytes) -> bytes:
    """The prompt of this index, padded and sealed under `RequestKeys.prompt`."""
    return _seal(key, index, _PROMPT + enc, plaintext)


def open_prompt(key: bytes | bytearray, enc: bytes, index: int, sealed: bytes) -> bytes:
    """The prompt, or ChannelBroken: it was altered, or belongs to another place or another request."""
    return _open(key, index, _PROMPT + enc, sealed, "A prompt")


def nonce_of(number: int) -> bytes:
    """A number as the AEAD takes it."""
    return number.to_bytes(12, "big")


def pad(data: bytes) -> bytes:
    """The true length, the data, and zeros up to the bucket's size."""
    size = _LENGTH.size + len(data)
    return b"".join((_LENGTH.pack(len(data)), data, bytes(padded(size) - size)))


def unpad(plaintext: bytes) -> bytes:
    """What was padded; ChannelBroken if its true length does not fit."""
    length = _LENGTH.unpack_from(plaintext)[0] if len(plaintext) >= _LENGTH.size else -1
    if not 0 <= length <= len(plaintext) - _LENGTH.size:
        raise ChannelBroken("A sealed message says it is longer than it is.")
    return plaintext[_LENGTH.size : _LENGTH.size + length]


def _seal(key: bytes | bytearray, number: int, aad: bytes, plaintext: bytes) -> bytes:
    if len(plaintext) > MAX_PLAINTEXT_BYTES:
        raise ChannelBroken(
            f"A sealed message may have at most {MAX_PLAINTEXT_BYTES} bytes, not {len(plaintext)}.",
            hint="Send a shorter prompt.",
        )
    return AESGCM(key).encrypt(nonce_of(number), pad(plaintext), aad)


def _open(key: bytes | bytearray, number: int, aad: bytes, sealed: bytes, what: str) -> bytes:
    try:
        return unpad(AESGCM(key).decrypt(nonce_of(number), sealed, aad))
    except InvalidTag:
        raise ChannelBroken(f"{what} was altered on its way, or sealed for another key.") from None
