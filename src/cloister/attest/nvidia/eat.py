"""The form of NVIDIA's detached EAT bundle: one overall token, and one token per device (RFC 9711 §4.2.18, JWT).

Says whether a token is signed by a key it is given, and what it claims; judges no claim.
"""

from __future__ import annotations

from typing import Annotated, Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid

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
        header = msgspec.json.decode(_base64url(header_text), type=_Header)
        claims = msgspec.json.decode(_base64url(payload_text), type=dict[str, Any])
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


def _base64url(text: str) -> bytes:
    return jwt.utils.base64url_decode(text)
