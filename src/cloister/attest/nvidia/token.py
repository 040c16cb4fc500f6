"""Whether a token of NVIDIA's attestation service proves what a policy asks for.

It is a detached EAT bundle: one overall token and one per device (RFC 9711 §4.2.18, JWT). The caller passes the keys in
(RFC 7517); only P-384 counts. The service has checked reports, revocation and reference manifests. This module checks
that the service signed this now, for our nonce, and that it found every GPU in order.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

import jwt
import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Meta, Struct

from cloister.attest.nvidia.policy import SWITCH, GpuPolicy, examine_versions
from cloister.attest.nvidia.spdm import architecture
from cloister.checks import Examination, Verdict, decode_evidence
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
    """The P-384 keys by their ids, or EvidenceInvalid. Keys of other kinds are left out."""
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
    """One JWT. `claims` count only if `why_unsigned` is empty."""

    text: str
    claims: dict[str, Any]
    why_unsigned: str


_Name = Annotated[str, Meta(max_length=64)]
_Bundle = tuple[tuple[str, str], Annotated[dict[_Name, str], Meta(max_length=MAX_DEVICES)]]


def read_bundle(data: bytes, keys: dict[str, ec.EllipticCurvePublicKey]) -> tuple[SignedToken, dict[str, SignedToken]]:
    """The overall token and the devices', or EvidenceInvalid. A bare overall token is a bundle of no device."""
    if len(data) > MAX_TOKEN_BYTES:
        raise EvidenceInvalid(f"A GPU token may have at most {MAX_TOKEN_BYTES} bytes.")
    text = data.strip()
    if not text.startswith(b"["):
        return _read_token(text.strip(b'"'), keys), {}
    try:
        (kind, overall), devices = msgspec.json.decode(text, type=_Bundle)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(
            f"The GPU token is no detached EAT bundle ({type(wrong).__name__}).",
            hint='It has the form [["JWT", overall], {"GPU-0": token, …}], as the service answers.',
        ) from None
    if kind != "JWT":
        raise EvidenceInvalid("The GPU token's overall token is no JWT.")
    return _read_token(overall.encode(), keys), {
        name: _read_token(token.encode(), keys) for name, token in devices.items()
    }


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


_RIM: Final = ("fetched", "schema-validated", "signature-verified", "measurements-available")


class _Words(Struct, frozen=True):
    """How versions 2 and 3 of NVIDIA's token speak of a kind of device: its claims' prefix, and its manifests."""

    prefix: str
    manifests: tuple[str, ...]
    firmware: str
    """The claim with the version of its VBIOS."""

    def must(self, *, versions: bool) -> dict[str, tuple[tuple[str, Any], ...]]:
        """What must be exactly so, by the name of the check."""
        conflict = ((self.prefix + "vbios-index-no-conflict", True),) if len(self.manifests) > 1 else ()
        parts = (*_RIM, "version-match") if versions else _RIM
        return {
            "secure boot": (("secboot", True),),
            "debug": (("dbgstat", "disabled"),),
            "measurements": (("measres", "success"),),
            "architecture match": ((self.prefix + "arch-check", True),),
            "report": tuple(
                (f"{self.prefix}attestation-report-{what}", True)
                for what in ("parsed", "signature-verified", "nonce-match")
            ),
            "reference manifests": (
                *conflict,
                *((f"{self.prefix}{part}-rim-{what}", True) for part in self.manifests for what in parts),
            ),
        }

    def chains(self) -> tuple[tuple[str, str], ...]:
        """Each chain's claim in version 3, and in version 2."""
        report = f"{self.prefix}attestation-report-cert-chain"
        rims = (f"{self.prefix}{part}-rim-cert-" for part in self.manifests)
        return ((report, report + "-validated"), *((rim + "chain", rim + "validated") for rim in rims))


_GPU: Final = _Words("x-nvidia-gpu-", ("driver", "vbios"), "vbios-version")
_SWITCH: Final = _Words("x-nvidia-switch-", ("bios",), "bios-version")
_ABSENT: Final = object()


def verify_gpu_token(token: bytes, jwks: bytes, nonce: bytes | None, *, at: datetime, policy: GpuPolicy) -> Verdict:
    """The verdict on a token. `jwks` are the service's keys."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone means another moment on every machine")
    overall_token, devices = read_bundle(token, read_jwks(jwks))
    found = Examination()
    overall = overall_token.claims
    _examine_token(overall_token, nonce, at, policy, found)
    found.check(
        "overall result",
        overall.get("x-nvidia-overall-att-result") is True,
        "the service did not find everything in order",
    )
    described: list[dict[str, Any]] = []
    for name, device in devices.items():
        one = Examination(prefix=f"{_plain(name)}: ")
        _examine_digest(name, device, overall, one)
        _examine_token(device, nonce, at, policy, one)
        _examine_gpu(name, device.claims, policy, one)
        verdict = one.verdict()
        described.append(dict(verdict.claims))
        found.include(Verdict(verdict.checks))
    _examine_count(overall, devices, policy, found)
    found.claim("gpus", described)
    return found.verdict()


def _examine_token(
    token: SignedToken, nonce: bytes | None, at: datetime, policy: GpuPolicy, found: Examination
) -> None:
    claims = token.claims
    found.check("token signature", not token.why_unsigned, token.why_unsigned)
    issuer = claims.get("iss")
    found.check("issuer", issuer in policy.issuers, f"{_plain(issuer)} is not one the policy accepts", _plain(issuer))
    _examine_dates(claims, at.timestamp(), policy.leeway_seconds, found)
    if nonce is None:
        found.skipped("nonce", "nothing to compare with was given", required=False)
    else:
        stated = claims.get("eat_nonce")
        same = isinstance(stated, str) and hmac.compare_digest(stated.lower().encode(), nonce.hex().encode())
        found.check("nonce", same, "the token answers another nonce")


def _examine_dates(claims: Mapping[str, Any], now: float, leeway: int, found: Examination) -> None:
    dates: dict[str, Any] = {name: claims.get(name) for name in ("iat", "nbf", "exp")}
    unusable = [name for name, value in dates.items() if isinstance(value, bool) or not isinstance(value, int | float)]
    if unusable:
        found.failed("dates", f"the token has no usable {', '.join(unusable)}")
        return
    ahead = [name for name in ("iat", "nbf") if dates[name] > now]
    within = max(dates["iat"], dates["nbf"]) <= now + leeway and now - leeway < dates["exp"]
    found.check(
        "dates",
        not ahead and now < dates["exp"],
        f"{', '.join(ahead)} lies in the future" if ahead else "the token has expired",
        allowed_by=f"leeway_seconds {leeway}" if within else "",
    )


def _examine_digest(name: str, device: SignedToken, overall: Mapping[str, Any], found: Examination) -> None:
    """The overall token names every device's token by its digest: none can be swapped, added or left out."""
    submodules = overall.get("submods")
    stated = submodules.get(name) if isinstance(submodules, dict) else None
    digest = hashlib.sha256(device.text.encode()).hexdigest()
    found.check(
        "digest",
        stated in (["DIGEST", ["SHA-256", digest]], ["DIGEST", ["SHA256", digest]]),
        "the overall token does not name this token",
    )


def _examine_gpu(name: str, claims: Mapping[str, Any], policy: GpuPolicy, found: Examination) -> None:
    model = claims.get("hwmodel")
    known = architecture(model) if isinstance(model, str) else None
    words = _SWITCH if known == SWITCH else _GPU
    driver = _plain(claims.get(words.prefix + "driver-version", ""))
    vbios = _plain(claims.get(words.prefix + words.firmware, ""))
    for key, value in (
        *(("name", _plain(name)), ("chip", _plain(model)), ("serial", _plain(claims.get("ueid", "")))),
        *(("driver_version", driver), ("vbios_version", vbios)),
    ):
        found.claim(key, value)
    for check, wanted in words.must(versions=_says_versions(claims, words)).items():
        wrong = [claim for claim, value in wanted if not _same(claims.get(claim, _ABSENT), value)]
        found.check(check, not wrong, f"the service does not say so of {', '.join(wrong)}")
    _examine_certificates(claims, words, found)
    fwid = claims.get(words.prefix + "attestation-report-cert-chain-fwid-match")
    if fwid is None:
        found.skipped("firmware", "the token does not say", required=policy.require_fwid)
    else:
        found.check("firmware", fwid is True, "the certificate is of other firmware")
    found.claim("architecture", known)
    found.check(
        "architecture", known in policy.architectures, f"{_plain(model)} is not one the policy accepts", str(known)
    )
    examine_versions(driver, vbios, policy, found, known)


def _says_versions(claims: Mapping[str, Any], words: _Words) -> bool:
    """Version 2 does not say whether the manifests are of the versions reported; if a token says, it counts."""
    older = all(claims.get(chain) is None and claims.get(validated) is True for chain, validated in words.chains())
    return not older or any(f"{words.prefix}{part}-rim-version-match" in claims for part in words.manifests)


def _examine_certificates(claims: Mapping[str, Any], words: _Words, found: Examination) -> None:
    """Version 3 says status and revocation of each chain, version 2 that it was validated."""
    wrong = []
    for chain, validated in words.chains():
        stated = claims.get(chain)
        if isinstance(stated, dict):
            ok = stated.get("x-nvidia-cert-status") == "valid" and stated.get("x-nvidia-cert-ocsp-status") == "good"
        else:
            ok = stated is None and claims.get(validated) is True
        wrong += [] if ok else [chain]
    found.check("certificates", not wrong, f"the service does not say valid and good of {', '.join(wrong)}")


def _examine_count(
    overall: Mapping[str, Any], devices: Mapping[str, SignedToken], policy: GpuPolicy, found: Examination
) -> None:
    named = overall.get("submods")
    missing = set(named) - set(devices) if isinstance(named, dict) else set()
    if not devices:
        found.skipped("gpu count", "the token comes without the tokens of its GPUs")
        return
    models = [token.claims.get("hwmodel") for token in devices.values()]
    count = policy.counted([architecture(model) if isinstance(model, str) else None for model in models])
    found.check(
        "gpu count",
        not missing and count >= policy.min_gpus,
        f"{count} tokens of GPUs, {len(missing)} missing; the policy asks for {policy.min_gpus}",
        str(count),
    )
    ids = [token.claims.get("ueid") for token in devices.values()]
    distinct = len({str(one) for one in ids}) == len(ids) and all(isinstance(one, str) for one in ids)
    found.check("gpus distinct", distinct, "one GPU is named more than once, or not at all")


def _same(value: object, wanted: object) -> bool:
    """Equal and of one type: 1 is not true."""
    return type(value) is type(wanted) and value == wanted


def _plain(value: object) -> str:
    """A claim as one short line of plain letters."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(value))[:80]
