"""Encapsulation (RFC 9458 §4): the keys of one exchange from HPKE (RFC 9180, base mode), and its chain of seals."""

import secrets
import struct
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pyhpke import AEADId, CipherSuite, KDFId, KEMId, KEMKeyPair, PyHPKEError
from pyhpke.kdf import KDF
from pyhpke.keys.x25519_key import X25519Key

from cloister.channel.ohttp.keys import KEM, SUITES, KeyConfiguration, Suite
from cloister.channel.sealing import ENC_BYTES
from cloister.errors import ChannelBroken

NONCE_BYTES = 12
TAG_BYTES = 16
MAX_SEALS = 1 << 24  # of one key: far below what AES-GCM bears, and no counter wraps
_HEADER = struct.Struct(f">BHHH{ENC_BYTES}s")
HEADER_BYTES = _HEADER.size
_ALGORITHMS = 7
_KEY_BYTES = {AEADId.AES128_GCM.value: 16, AEADId.AES256_GCM.value: 32, AEADId.CHACHA20_POLY1305.value: 32}
ENTROPY_BYTES = {aead: max(NONCE_BYTES, size) for aead, size in _KEY_BYTES.items()}
_HPKE = {suite: CipherSuite.new(KEMId(KEM), KDFId(suite.kdf), AEADId(suite.aead)) for suite in SUITES}


class Form(Enum):
    """The labels that keep the two forms apart."""

    WHOLE = (b"message/bhttp request", b"message/bhttp response")
    CHUNKED = (b"message/bhttp chunked request", b"message/bhttp chunked response")


class Header(NamedTuple):
    key_id: int
    kem: int
    kdf: int
    aead: int
    enc: bytes

    def encode(self) -> bytes:
        return _HEADER.pack(*self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Of the beginning of an encapsulated request."""
        if len(data) < HEADER_BYTES:
            raise ChannelBroken("An encapsulated request ends within its header.")
        header = cls._make(_HEADER.unpack_from(data))
        if header.kem != KEM or header.suite not in SUITES:
            raise ChannelBroken("An encapsulated request uses algorithms that no key configuration here has.")
        return header

    @property
    def suite(self) -> Suite:
        return Suite(self.kdf, self.aead)

    def info(self, form: Form) -> bytes:
        return form.value[0] + b"\0" + self.encode()[:_ALGORITHMS]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class ExchangeKeys:
    """Of one exchange: what seals the request, and the secret that the response's key comes from."""

    request_key: bytes
    base_nonce: bytes
    response_secret: bytes


def encapsulate(
    configuration: KeyConfiguration, form: Form, ephemeral: KEMKeyPair | None = None
) -> tuple[Header, ExchangeKeys]:
    """A fresh exchange with the holder of the key. Only test vectors bring an `ephemeral` key."""
    suite = configuration.suite
    try:
        public = X25519Key.from_public_bytes(configuration.public)
        shared, enc = _HPKE[suite].kem.encap(public, None, ephemeral)
    except (ValueError, PyHPKEError):
        raise ChannelBroken(
            "A key configuration's key is not a usable X25519 point.", hint="Do not trust it."
        ) from None
    header = Header(configuration.key_id, KEM, suite.kdf, suite.aead, enc)
    return header, _schedule(shared, header, form)


def decapsulate(private: X25519Key, header: Header, form: Form) -> ExchangeKeys:
    """The same keys at the other end; ChannelBroken if `enc` is no point to agree on a key with."""
    try:
        shared = _HPKE[header.suite].kem.decap(header.enc, private)
    except (ValueError, PyHPKEError):
        raise ChannelBroken("The encapsulated key is not a usable X25519 point.") from None
    return _schedule(shared, header, form)


def _schedule(shared: bytes, header: Header, form: Form) -> ExchangeKeys:
    """HPKE's key schedule in base mode, and its export (RFC 9180 §5.1, §5.3): pyhpke's contexts keep their key."""
    suite_id = struct.pack(">4sHHH", b"HPKE", header.kem, *header.suite)
    kdf, size, info = KDF(KDFId(header.kdf), suite_id), _KEY_BYTES[header.aead], header.info(form)
    context = b"\0" + kdf.labeled_extract(b"", b"psk_id_hash", b"") + kdf.labeled_extract(b"", b"info_hash", info)
    secret = kdf.labeled_extract(shared, b"secret", b"")
    key, nonce, exporter = (
        kdf.labeled_expand(secret, label, context, length)
        for label, length in ((b"key", size), (b"base_nonce", NONCE_BYTES), (b"exp", kdf.digest_size))
    )
    return ExchangeKeys(key, nonce, kdf.labeled_expand(exporter, b"sec", form.value[1], ENTROPY_BYTES[header.aead]))


class Chain:
    """Seals or opens one direction. Each seal has a nonce for its place, so none can be moved, left out or repeated."""

    def __init__(self, aead: int, key: bytes, base_nonce: bytes, most: int = MAX_SEALS) -> None:
        self._aead = ChaCha20Poly1305(key) if aead == AEADId.CHACHA20_POLY1305.value else AESGCM(key)
        self._base = int.from_bytes(base_nonce, "big")
        self._number, self._most = 0, most

    def seal(self, data: bytes, aad: bytes = b"") -> bytes:
        return self._aead.encrypt(self._nonce(), data, aad)

    def open(self, sealed: bytes, aad: bytes = b"") -> bytes:
        try:
            return self._aead.decrypt(self._nonce(), sealed, aad)
        except (InvalidTag, ValueError):
            raise ChannelBroken("An encapsulated message was altered, cut or reordered on its way.") from None

    def _nonce(self) -> bytes:
        if self._number >= self._most:
            raise ChannelBroken("An encapsulated message has more chunks than its key may seal.")
        nonce = self._base ^ self._number
        self._number += 1
        return nonce.to_bytes(NONCE_BYTES, "big")


def request_chain(header: Header, keys: ExchangeKeys) -> Chain:
    return Chain(header.aead, keys.request_key, keys.base_nonce)


def response_nonce(header: Header) -> bytes:
    return secrets.token_bytes(ENTROPY_BYTES[header.aead])


def response_chain(header: Header, keys: ExchangeKeys, nonce: bytes) -> Chain:
    """§4.4; the suites here all have HKDF-SHA256."""
    salt = header.enc + nonce
    key, base = (
        HKDF(hashes.SHA256(), size, salt=salt, info=label).derive(keys.response_secret)
        for label, size in ((b"key", _KEY_BYTES[header.aead]), (b"nonce", NONCE_BYTES))
    )
    return Chain(header.aead, key, base)


def seal_request(header: Header, keys: ExchangeKeys, message: bytes) -> bytes:
    return header.encode() + request_chain(header, keys).seal(message)


def open_request(header: Header, keys: ExchangeKeys, encapsulated: bytes) -> bytes:
    return request_chain(header, keys).open(encapsulated[HEADER_BYTES:])


def seal_response(header: Header, keys: ExchangeKeys, message: bytes) -> bytes:
    nonce = response_nonce(header)
    return nonce + response_chain(header, keys, nonce).seal(message)


def open_response(header: Header, keys: ExchangeKeys, encapsulated: bytes) -> bytes:
    size = ENTROPY_BYTES[header.aead]
    return response_chain(header, keys, encapsulated[:size]).open(encapsulated[size:])
