"""Key configurations (RFC 9458 §3): a key, its id of one byte, what may be used with it. Other KEMs are skipped."""

import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

from pyhpke import AEADId, KDFId, KEMId

from cloister.channel.sealing import PUBLIC_BYTES, key_id
from cloister.errors import ChannelBroken


class Suite(NamedTuple):
    kdf: int
    aead: int


KEM = KEMId.DHKEM_X25519_HKDF_SHA256.value
SUITES = tuple(
    Suite(KDFId.HKDF_SHA256.value, aead.value)
    for aead in (AEADId.AES256_GCM, AEADId.CHACHA20_POLY1305, AEADId.AES128_GCM)
)
PUBLISHED = SUITES[::-1]  # clients that take the first one mostly lack AES-256
MAX_DOCUMENT_BYTES = 8192
MAX_CONFIGURATIONS = 16
MAX_SUITES = 32
_HEAD = struct.Struct(f">BH{PUBLIC_BYTES}sH")
_SHORT = struct.Struct(">H")
_SUITE = struct.Struct(">HH")


@dataclass(frozen=True, slots=True)
class KeyConfiguration:
    key_id: int
    public: bytes
    suites: tuple[Suite, ...] = PUBLISHED

    def encode(self) -> bytes:
        if not 0 <= self.key_id <= 255 or len(self.public) != PUBLIC_BYTES or not 1 <= len(self.suites) <= MAX_SUITES:
            raise ChannelBroken("A key configuration has an id of one byte, an X25519 key, and some suites.")
        suites = b"".join(_SUITE.pack(*suite) for suite in self.suites)
        return _HEAD.pack(self.key_id, KEM, self.public, len(suites)) + suites

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) < _HEAD.size:
            raise ChannelBroken("A key configuration is cut off.")
        key_id, kem, public, size = _HEAD.unpack_from(data)
        if kem != KEM or size != len(data) - _HEAD.size or size % _SUITE.size or not 1 <= size // _SUITE.size <= 32:
            raise ChannelBroken("A key configuration has another KEM, or its suites are malformed.")
        return cls(key_id, public, tuple(Suite(*each) for each in _SUITE.iter_unpack(data[_HEAD.size :])))

    @classmethod
    def of(cls, public: bytes) -> Self:
        """Of a node's channel key, which evidence shows: a client that verified it knows the configuration."""
        return cls(key_id(public)[0], public)

    @property
    def suite(self) -> Suite:
        """The first of SUITES that the configuration has: the same for every client."""
        for suite in SUITES:
            if suite in self.suites:
                return suite
        raise ChannelBroken("A key configuration has no suite that is known here.")


def write_keys(configurations: tuple[KeyConfiguration, ...]) -> bytes:
    """A document of type application/ohttp-keys (§3.2)."""
    encoded = [one.encode() for one in configurations]
    return b"".join(_SHORT.pack(len(one)) + one for one in encoded)


def document_of(public: bytes) -> bytes:
    """What a node with this channel key publishes."""
    return write_keys((KeyConfiguration.of(public),))


def read_keys(document: bytes) -> tuple[KeyConfiguration, ...]:
    """The configurations that can be used here, at least one; or ChannelBroken."""
    if len(document) > MAX_DOCUMENT_BYTES:
        raise ChannelBroken(f"Key configurations may have at most {MAX_DOCUMENT_BYTES} bytes.")
    found: list[KeyConfiguration] = []
    at = count = 0
    while at < len(document):
        size = _SHORT.unpack_from(document, at)[0] if len(document) - at >= _SHORT.size else len(document)
        at, count = at + _SHORT.size, count + 1
        if not 3 <= size <= len(document) - at or count > MAX_CONFIGURATIONS:
            raise ChannelBroken("A document of key configurations is cut off, or has too many.")
        one, at = document[at : at + size], at + size
        if one[1:3] == _SHORT.pack(KEM):
            found.append(KeyConfiguration.decode(one))
    found = [one for one in found if set(one.suites) & set(SUITES)]
    if not found or len({one.key_id for one in found}) != len(found):
        raise ChannelBroken("Of the key configurations none can be used, or two have one id.")
    return tuple(found)
