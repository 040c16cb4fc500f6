"""The keys of one request: an HPKE session of its own to the node's channel key, and what both sides export from it.

RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, export-only: the Diffie–Hellman exchange of Petridish §4.1
made once per request. Three keys come of it, so that each holder can be given its own and no other: `request` opens the
inner request, `prompt` opens the prompts (the vault's alone), `response` seals the answer. Messages are unknown here.

Erasing overwrites what is held here. The bytes that pyhpke works with are freed, and wiped by the allocator that the
node's processes run with (see `cloister.process.entry`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, PyHPKEError
from pyhpke.context_interface import ContextInterface
from pyhpke.keys.x25519_key import X25519Key

from cloister.errors import ChannelBroken, ChannelKeyUnknown, MessageRepeated

PUBLIC_BYTES = 32
ENC_BYTES = 32
KEY_ID_BYTES = 8
KEY_BYTES = 32

_INFO = b"cloister channel v1"
_SUITE = CipherSuite.new(KEMId.DHKEM_X25519_HKDF_SHA256, KDFId.HKDF_SHA256, AEADId.EXPORT_ONLY)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RequestKeys:
    """Three keys that belong to one request and are never used for another."""

    request: bytearray
    prompt: bytearray
    response: bytearray

    def erase(self) -> None:
        """Overwrite all three; nothing can be opened with them any more."""
        for key in (self.request, self.prompt, self.response):
            key[:] = bytes(len(key))


class ChannelKey:
    """The node's key: made at start, bound into its evidence, never written anywhere."""

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = X25519Key(private)
        self.public = private.public_key().public_bytes_raw()
        self.key_id = key_id(self.public)

    @classmethod
    def generate(cls) -> ChannelKey:
        return cls(X25519PrivateKey.generate())

    def accept(self, enc: bytes, *, info: bytes = _INFO) -> RequestKeys:
        """The keys of the request that came with `enc`; ChannelBroken if that is no point to agree on a key with."""
        if len(enc) != ENC_BYTES:
            raise ChannelBroken(f"An encapsulated key has {ENC_BYTES} bytes, not {len(enc)}.")
        try:
            return _export(_SUITE.create_recipient_context(bytes(enc), self._private, info))
        except (ValueError, PyHPKEError):  # a point of low order gives the all-zero secret, RFC 9180 §7.1.4
            raise ChannelBroken("The encapsulated key is not a usable X25519 point.") from None


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
    request, prompt, response = (
        bytearray(context.export(b"cloister " + name, KEY_BYTES)) for name in (b"request", b"prompt", b"response")
    )
    return RequestKeys(request, prompt, response)


DEFAULT_LIMIT = 1 << 18
_KEPT_BYTES = 16


class SeenMessages:
    """The encapsulated keys seen under one channel key: a message that somebody recorded and sends again is refused.

    It never forgets while the key lives. Once full it refuses everything, as if the key were gone: the key's holder
    makes a new one then, best as soon as `full` says so, and clients verify it and send again.
    """

    def __init__(self, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._seen: set[bytes] = set()

    @property
    def full(self) -> bool:
        """Whether the next message will be refused whatever it is."""
        return len(self._seen) >= self._limit

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, enc: bytes) -> None:
        """Note it. MessageRepeated if it was there before; ChannelKeyUnknown if there is no room to note it."""
        kept = bytes(enc[:_KEPT_BYTES])
        if kept in self._seen:
            raise MessageRepeated(
                "This sealed message was received before.", hint="Seal the request anew; every message is taken once."
            )
        if self.full:
            raise ChannelKeyUnknown(
                "The channel key has taken as many messages as it may.", hint="Verify the node anew and send again."
            )
        self._seen.add(kept)
