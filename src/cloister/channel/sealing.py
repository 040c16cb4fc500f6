"""One request's keys from an HPKE session to the channel key (RFC 9180, export-only; Petridish §4.1). AES-256-GCM,
nonce 0 or a prompt's index, padded to a bucket. The node's allocator wipes pyhpke's bytes."""

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, PyHPKEError
from pyhpke.context_interface import ContextInterface
from pyhpke.keys.x25519_key import X25519Key

from cloister.errors import ChannelBroken, ChannelKeyUnknown, MessageRepeated

PUBLIC_BYTES = 32
ENC_BYTES = 32
KEY_ID_BYTES = 8
KEY_BYTES = 32
_INFO = b"cloister channel v1"
Agreed = TypeVar("Agreed")
_SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.EXPORT_ONLY)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RequestKeys:
    """Three keys that belong to one request and are never used for another."""

    request: bytearray
    prompt: bytearray
    response: bytearray

    def erase(self) -> None:
        for key in (self.request, self.prompt, self.response):
            key[:] = bytes(len(key))


class ChannelKey:
    """The node's key: made at start, bound into its evidence."""

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = X25519Key(private)
        self.public = private.public_key().public_bytes_raw()
        self.key_id = key_id(self.public)

    @classmethod
    def generate(cls) -> Self:
        return cls(X25519PrivateKey.generate())

    def accept(self, enc: bytes, *, info: bytes = _INFO) -> RequestKeys:
        """The keys of the request that came with `enc`; ChannelBroken if that is no point to agree on a key with."""
        if len(enc) != ENC_BYTES:
            raise ChannelBroken(f"An encapsulated key has {ENC_BYTES} bytes, not {len(enc)}.")
        try:
            return _export(_SUITE.create_recipient_context(bytes(enc), self._private, info))
        except (ValueError, PyHPKEError):  # a point of low order gives the all-zero secret, RFC 9180 §7.1.4
            raise ChannelBroken("The encapsulated key is not a usable X25519 point.") from None

    def decapsulate(self, agree: Callable[[X25519Key], Agreed]) -> Agreed:
        """For another protocol's keys, apart by HPKE's `info`."""
        return agree(self._private)


def address_to(public: bytes, *, info: bytes = _INFO) -> tuple[bytes, RequestKeys]:
    """Fresh keys for one request to the holder of `public`, and the `enc` that lets the holder derive them too."""
    if len(public) != PUBLIC_BYTES:
        raise ChannelBroken(f"A channel key has {PUBLIC_BYTES} bytes, not {len(public)}.")
    try:
        enc, context = _SUITE.create_sender_context(X25519Key.from_public_bytes(bytes(public)), info)
    except (ValueError, PyHPKEError):
        raise ChannelBroken("The node's channel key is not a usable X25519 point.", hint="Do not trust it.") from None
    return enc, _export(context)


def key_id(public: bytes) -> bytes:
    """The short name of a channel key, by which a node tells whether it still holds it."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


def _export(context: ContextInterface) -> RequestKeys:
    names = (b"cloister request", b"cloister prompt", b"cloister response")
    request, prompt, response = (bytearray(context.export(name, KEY_BYTES)) for name in names)
    return RequestKeys(request, prompt, response)


DEFAULT_LIMIT = 1 << 18
_KEPT_BYTES = 16


class SeenMessages:
    """Refuses recorded messages. It never forgets while the key lives; once `full` it refuses all: a new key is due."""

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._seen: set[bytes] = set()

    @property
    def count(self) -> int:
        return len(self._seen)

    @property
    def full(self) -> bool:
        return self.count >= self._limit

    def add(self, enc: bytes) -> None:
        """Note it. MessageRepeated if it was there before; ChannelKeyUnknown if there is no room to note it."""
        kept = bytes(enc[:_KEPT_BYTES])
        if kept in self._seen:
            hint = "Seal the request again; every message is taken once."
            raise MessageRepeated("This sealed message was received before.", hint=hint)
        if self.full:
            hint = "Verify the node and send again."
            raise ChannelKeyUnknown("The channel key has taken as many messages as it may.", hint=hint)
        self._seen.add(kept)


SMALLEST_BYTES = 512  # An event of a streamed answer with one token in it fits, whatever the token.
FINE_BYTES = 1 << 20


def padded(length: int) -> int:
    if length <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    if length <= FINE_BYTES:
        return 1 << (length - 1).bit_length()
    return -(-length // FINE_BYTES) * FINE_BYTES


TAG_BYTES = 16
MAX_PLAINTEXT_BYTES = 16 << 20  # Of one request or prompt, before padding.
_LENGTH = struct.Struct(">I")
_REQUEST = b"cloister request\0"
_PROMPT = b"cloister prompt\0"


def seal_request(key: bytes | bytearray, enc: bytes, plaintext: bytes) -> bytes:
    return _seal(key, 0, _REQUEST + enc, plaintext)


def open_request(key: bytes | bytearray, enc: bytes, sealed: bytes) -> bytes:
    return _open(key, 0, _REQUEST + enc, sealed, "The request")


def seal_prompt(key: bytes | bytearray, enc: bytes, index: int, plaintext: bytes) -> bytes:
    return _seal(key, index, _PROMPT + enc, plaintext)


def open_prompt(key: bytes | bytearray, enc: bytes, index: int, sealed: bytes) -> bytes:
    """The prompt, or ChannelBroken: it was altered, or belongs to another place or another request."""
    return _open(key, index, _PROMPT + enc, sealed, "A prompt")


def nonce_of(number: int) -> bytes:
    return number.to_bytes(12, "big")


def pad(data: bytes) -> bytes:
    size = _LENGTH.size + len(data)
    return b"".join((_LENGTH.pack(len(data)), data, bytes(padded(size) - size)))


def unpad(plaintext: bytes) -> bytes:
    length = _LENGTH.unpack_from(plaintext)[0] if len(plaintext) >= _LENGTH.size else -1
    if not 0 <= length <= len(plaintext) - _LENGTH.size:
        raise ChannelBroken("A sealed message says it is longer than it is.")
    return plaintext[_LENGTH.size : _LENGTH.size + length]


def _seal(key: bytes | bytearray, number: int, aad: bytes, plaintext: bytes) -> bytes:
    if len(plaintext) > MAX_PLAINTEXT_BYTES:
        message = f"A sealed message may have at most {MAX_PLAINTEXT_BYTES} bytes, not {len(plaintext)}."
        raise ChannelBroken(message, hint="Send a shorter prompt.")
    return AESGCM(key).encrypt(nonce_of(number), pad(plaintext), aad)


def _open(key: bytes | bytearray, number: int, aad: bytes, sealed: bytes, what: str) -> bytes:
    try:
        return unpad(AESGCM(key).decrypt(nonce_of(number), sealed, aad))
    except InvalidTag:
        raise ChannelBroken(f"{what} was altered on its way, or sealed for another key.") from None
