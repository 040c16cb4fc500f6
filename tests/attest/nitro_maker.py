"""A hypervisor of our own: a chain as AWS has it, and documents it signs. Nothing here is AWS's."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PCRS = {0: b"\x10" * 48, 1: b"\x11" * 48, 2: b"\x12" * 48, 3: bytes(48), 4: b"\x14" * 48}


def p384() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def encode(value: Any, *, indefinite: bool = False) -> bytes:
    """CBOR of the kinds a document has."""
    match value:
        case None:
            return b"\xf6"
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case list() | tuple():
            return head(4, len(value)) + b"".join(map(encode, value))
        case dict():
            inside = b"".join(encode(key) + encode(each) for key, each in value.items())
            return b"\xbf" + inside + b"\xff" if indefinite else head(5, len(value)) + inside
    raise TypeError(value)


def head(major: int, count: int) -> bytes:
    for size, short in ((1, 24), (2, 25), (4, 26), (8, 27)):
        if count < 24:
            return bytes([major * 32 + count])
        if count < 1 << size * 8:
            return bytes([major * 32 + short]) + count.to_bytes(size, "big")
    raise ValueError(count)


def certificate(
    name: str, key: Any, issuer: str, signer: Any, *, ca: bool, days: float = 1, path: int | None = None
) -> bytes:
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=days))
        .not_valid_after(NOW + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=path), critical=True)
        .add_extension(x509.KeyUsage(not ca, False, False, False, False, ca, False, False, False), critical=ca)
    )
    return builder.sign(signer, SHA384()).public_bytes(Encoding.DER)


@dataclass
class Hypervisor:
    root_key: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    zone_key: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    key: ec.EllipticCurvePrivateKey = field(default_factory=p384)
    leaf_days: float = 1

    @cached_property
    def root(self) -> bytes:
        return certificate("root", self.root_key, "root", self.root_key, ca=True, days=9999)

    @cached_property
    def zone(self) -> bytes:
        return certificate("zone", self.zone_key, "root", self.root_key, ca=True, path=0)

    @cached_property
    def leaf(self) -> bytes:
        return certificate("enclave", self.key, "zone", self.zone_key, ca=False, days=self.leaf_days)

    @property
    def roots(self) -> frozenset[str]:
        spki = self.root_key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return frozenset({hashlib.sha256(spki).hexdigest()})

    def payload(self, **changes: Any) -> dict[str, Any]:
        fields = {
            "module_id": "i-0123456789abcdef0-enc0123456789abcdef",
            "digest": "SHA384",
            "timestamp": int(NOW.timestamp() * 1000),
            "pcrs": PCRS,
            "certificate": self.leaf,
            "cabundle": [self.root, self.zone],
            "public_key": None,
            "user_data": b"user data",
            "nonce": b"nonce",
        } | changes
        return {name: value for name, value in fields.items() if value is not ...}

    def document(
        self,
        *,
        protected: bytes = b"\xa1\x01\x38\x22",
        unprotected: Any = None,
        indefinite: bool = True,
        tagged: bool = False,
        payload: bytes | None = None,
        **changes: Any,
    ) -> bytes:
        """A signed document with these fields changed; `...` takes one away."""
        inside = encode(self.payload(**changes), indefinite=indefinite) if payload is None else payload
        signed = encode(["Signature1", protected, b"", inside])
        r, s = decode_dss_signature(self.key.sign(signed, ec.ECDSA(SHA384())))
        signature = r.to_bytes(48, "big") + s.to_bytes(48, "big")
        whole = encode([protected, unprotected or {}, inside, signature])
        return b"\xd2" + whole if tagged else whole
