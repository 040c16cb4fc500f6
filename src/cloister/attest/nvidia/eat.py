"""The form of NVIDIA's detached EAT bundle: one overall token, and one token per device (RFC 9711 §4.2.18, JWT).

Says whether a token is signed by a key it is given, and what it claims; judges no claim.
The keys (RFC 7517) are passed in by whoever fetched them; only P-384 counts.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

import jwt
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta, Struct

from cloister.checks import decode_evidence
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
    hint = 'It is a JSON object with `keys`, as the service serves it under "/.well-known/jwks.json".'
    keys = decode_evidence(data, _Keys, "A JWKS", limit=MAX_JWKS_BYTES, hint=hint).keys
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
        x, y = (int.from_bytes(_coordinate(part), "big") for part in (key.x, key.y))
        return ec.EllipticCurvePublicNumbers(x, y, curve).public_key()
    except Exception as wrong:  # the library has more ways to refuse a certificate than it names
        raise EvidenceInvalid(f"A key of the JWKS does not decode ({type(wrong).__name__}).") from None


def _coordinate(text: str) -> bytes:
    if len(text) > 128:
        raise ValueError("longer than any coordinate")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


MAX_TOKEN_BYTES = 262144
MAX_DEVICES = 64
ALGORITHM = "ES384"


class _Header(Struct, frozen=True):
    alg: str
    kid: str = ""


class SignedToken(Struct, frozen=True):
    """One JWT. `claims` are what it says, believed only if `why_unsigned` is empty."""

    text: str
    claims: dict[str, Any]
    why_unsigned: str


class EatBundle(Struct, frozen=True):
    overall: SignedToken
    devices: dict[str, SignedToken]


_Name = Annotated[str, Meta(max_length=64)]
_Bundle = tuple[tuple[str, str], Annotated[dict[_Name, str], Meta(max_length=MAX_DEVICES)]]


def read_bundle(data: bytes, keys: dict[str, ec.EllipticCurvePublicKey]) -> EatBundle:
    """The bundle, or EvidenceInvalid. A bare overall token is a bundle of no device."""
    if len(data) > MAX_TOKEN_BYTES:
        raise EvidenceInvalid(f"A GPU token may have at most {MAX_TOKEN_BYTES} bytes.")
    text = data.strip()
    if not text.startswith(b"["):
        return EatBundle(_read_token(text.strip(b'"'), keys), {})
    try:
        (kind, overall), devices = msgspec.json.decode(text, type=_Bundle)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(
            f"The GPU token is no detached EAT bundle ({type(wrong).__name__}).",
            hint='It has the form [["JWT", overall], {"GPU-0": token, …}], as the service answers.',
        ) from None
    if kind != "JWT":
        raise EvidenceInvalid("The GPU token's overall token is no JWT.")
    return EatBundle(
        _read_token(overall.encode(), keys),
        {name: _read_token(token.encode(), keys) for name, token in devices.items()},
    )


def _read_token(token: bytes, keys: dict[str, ec.EllipticCurvePublicKey]) -> SignedToken:
    try:
        header_text, payload_text, _ = (part.decode("ascii") for part in token.split(b"."))
        header = msgspec.json.decode(jwt.utils.base64url_decode(header_text), type=_Header)
        claims = msgspec.json.decode(jwt.utils.base64url_decode(payload_text), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(f"A GPU token is no JWT ({type(wrong).__name__}).") from None
    return SignedToken(token.decode(), claims, _why_unsigned(token.decode(), header, keys))


def _why_unsigned(token: str, header: _Header, keys: dict[str, ec.EllipticCurvePublicKey]) -> str:
    if header.alg != ALGORITHM:
        return f"its algorithm is not {ALGORITHM}"
    key = keys.get(header.kid)
    if key is None:
        return "none of the keys given has its key id"
    try:
        jwt.PyJWS(algorithms=[ALGORITHM]).decode(token, key, algorithms=[ALGORITHM])
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        return "its signature is not by the key it names"
    return ""
