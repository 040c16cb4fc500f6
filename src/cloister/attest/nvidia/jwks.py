"""The keys of NVIDIA's attestation service (RFC 7517), passed in by whoever fetched them. Only P-384 counts."""

from __future__ import annotations

import base64
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid

MAX_JWKS_BYTES = 262144
MAX_KEYS = 64


class _Key(Struct, frozen=True):
    kty: str = ""
    crv: str = ""
    kid: str = ""
    x: str = ""
    y: str = ""
    x5c: tuple[str, ...] = ()


class _Keys(Struct, frozen=True):
    keys: Annotated[tuple[_Key, ...], Meta(max_length=MAX_KEYS)]


def read_jwks(data: bytes) -> dict[str, ec.EllipticCurvePublicKey]:
    """The P-384 keys by their ids, or EvidenceInvalid. Keys of other kinds are of no use here and left out."""
    if len(data) > MAX_JWKS_BYTES:
        raise EvidenceInvalid(f"A JWKS may have at most {MAX_JWKS_BYTES} bytes.")
    try:
        keys = msgspec.json.decode(data, type=_Keys).keys
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(
            f"The JWKS does not decode ({type(wrong).__name__}).",
            hint='It is a JSON object with `keys`, as the service serves it under "/.well-known/jwks.json".',
        ) from None
    usable: dict[str, ec.EllipticCurvePublicKey] = {}
    for key in keys:
        if not key.kid or key.kty != "EC":
            continue
        if key.kid in usable:
            raise EvidenceInvalid("The JWKS has two keys of one id.")
        public = _read_key(key)
        if isinstance(public.curve, ec.SECP384R1):
            usable[key.kid] = public
    return usable


def _read_key(key: _Key) -> ec.EllipticCurvePublicKey:
    try:
        if key.x5c and not key.x:
            public = x509.load_der_x509_certificate(base64.b64decode(key.x5c[0], validate=True)).public_key()
            if not isinstance(public, ec.EllipticCurvePublicKey):
                raise ValueError("not an elliptic curve")
            return public
        curve = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1(), "P-521": ec.SECP521R1()}[key.crv]
        x, y = (int.from_bytes(_base64url(part), "big") for part in (key.x, key.y))
        return ec.EllipticCurvePublicNumbers(x, y, curve).public_key()
    except Exception as wrong:  # the library has more ways to refuse a certificate than it names
        raise EvidenceInvalid(f"A key of the JWKS does not decode ({type(wrong).__name__}).") from None


def _base64url(text: str) -> bytes:
    if len(text) > 128:
        raise ValueError("longer than any coordinate")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
