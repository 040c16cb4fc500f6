"""Whether a token of NVIDIA's attestation service proves what a policy asks for.

The service looked at the GPUs' reports, revocation and reference manifests and says what it found; here is checked
that it is the service speaking, now, about our nonce, and that it found nothing wrong with any GPU.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from cloister.attest.nvidia.device import architecture
from cloister.attest.nvidia.eat import EatBundle, SignedToken, read_bundle, read_jwks
from cloister.attest.nvidia.policy import GpuPolicy, examine_versions
from cloister.checks import Examination, Verdict

GPU: Final = "x-nvidia-gpu-"

# Claims of versions 2 and 3 of NVIDIA's token: what must be exactly so, by the name of the check.
_MUST: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "secure boot": (("secboot", True),),
    "debug": (("dbgstat", "disabled"),),
    "measurements": (("measres", "success"),),
    "architecture match": ((GPU + "arch-check", True),),
    "report": (
        (GPU + "attestation-report-parsed", True),
        (GPU + "attestation-report-signature-verified", True),
        (GPU + "attestation-report-nonce-match", True),
    ),
    "reference manifests": (
        (GPU + "vbios-index-no-conflict", True),
        *(
            (f"{GPU}{part}-rim-{what}", True)
            for part in ("driver", "vbios")
            for what in ("fetched", "schema-validated", "signature-verified", "measurements-available")
        ),
    ),
}
_CHAINS: Final = (
    (GPU + "attestation-report-cert-chain", GPU + "attestation-report-cert-chain-validated"),
    (GPU + "driver-rim-cert-chain", GPU + "driver-rim-cert-validated"),
    (GPU + "vbios-rim-cert-chain", GPU + "vbios-rim-cert-validated"),
)
_ABSENT: Final = object()


def verify_gpu_token(token: bytes, jwks: bytes, nonce: bytes | None, *, at: datetime, policy: GpuPolicy) -> Verdict:
    """The verdict on a token of the service whose keys are passed in, at a time."""
    if at.tzinfo is None:
        raise ValueError("a time without a zone means another moment on every machine")
    bundle = read_bundle(token, read_jwks(jwks))
    found = Examination()
    overall = bundle.overall.claims
    _examine_token(bundle.overall, nonce, at, policy, found)
    found.check(
        "overall result",
        overall.get("x-nvidia-overall-att-result") is True,
        "the service did not find everything in order",
    )
    described: list[dict[str, Any]] = []
    for name, device in bundle.devices.items():
        one = Examination(prefix=f"{_plain(name)}: ")
        _examine_digest(name, device, overall, one)
        _examine_token(device, nonce, at, policy, one)
        _examine_gpu(name, device.claims, policy, one)
        verdict = one.verdict()
        described.append(dict(verdict.claims))
        found.include(Verdict(verdict.checks))
    _examine_count(bundle, policy, found)
    found.claim("gpus", described)
    return found.verdict()


def _examine_token(
    token: SignedToken, nonce: bytes | None, at: datetime, policy: GpuPolicy, found: Examination
) -> None:
    """Who speaks, when, and to which question."""
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
    ahead = [name for name in ("iat", "nbf") if dates[name] > now + leeway]
    found.check(
        "dates",
        not ahead and now - leeway < dates["exp"],
        f"{', '.join(ahead)} lies in the future" if ahead else "the token has expired",
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
    driver, vbios = _plain(claims.get(GPU + "driver-version", "")), _plain(claims.get(GPU + "vbios-version", ""))
    for key, value in (
        *(("name", _plain(name)), ("chip", _plain(model)), ("serial", _plain(claims.get("ueid", "")))),
        *(("driver_version", driver), ("vbios_version", vbios)),
    ):
        found.claim(key, value)
    for check, wanted in _MUST.items():
        wrong = [claim for claim, value in wanted if not _same(claims.get(claim, _ABSENT), value)]
        found.check(check, not wrong, f"the service does not say so of {', '.join(wrong)}")
    _examine_certificates(claims, found)
    fwid = claims.get(GPU + "attestation-report-cert-chain-fwid-match")
    if fwid is None:
        found.skipped("firmware", "the token does not say", required=policy.require_fwid)
    else:
        found.check("firmware", fwid is True, "the certificate is of other firmware")
    known = architecture(model) if isinstance(model, str) else None
    found.claim("architecture", known)
    found.check(
        "architecture", known in policy.architectures, f"{_plain(model)} is not one the policy accepts", str(known)
    )
    examine_versions(driver, vbios, policy, found)


def _examine_certificates(claims: Mapping[str, Any], found: Examination) -> None:
    """Version 3 says status and revocation of each chain, version 2 that it was validated."""
    wrong = []
    for chain, validated in _CHAINS:
        stated = claims.get(chain)
        if isinstance(stated, dict):
            ok = stated.get("x-nvidia-cert-status") == "valid" and stated.get("x-nvidia-cert-ocsp-status") == "good"
        else:
            ok = stated is None and claims.get(validated) is True
        wrong += [] if ok else [chain]
    found.check("certificates", not wrong, f"the service does not say valid and good of {', '.join(wrong)}")


def _examine_count(bundle: EatBundle, policy: GpuPolicy, found: Examination) -> None:
    named = bundle.overall.claims.get("submods")
    missing = set(named) - set(bundle.devices) if isinstance(named, dict) else set()
    if not bundle.devices:
        found.skipped("gpu count", "the token comes without the tokens of its GPUs")
        return
    found.check(
        "gpu count",
        not missing and len(bundle.devices) >= policy.min_gpus,
        f"{len(bundle.devices)} tokens of GPUs, {len(missing)} missing; the policy asks for {policy.min_gpus}",
        str(len(bundle.devices)),
    )
    devices = [token.claims.get("ueid") for token in bundle.devices.values()]
    distinct = len({str(one) for one in devices}) == len(devices) and all(isinstance(one, str) for one in devices)
    found.check("gpus distinct", distinct, "one GPU is named more than once, or not at all")


def _same(value: object, wanted: object) -> bool:
    """Equal and of one type: 1 is not true."""
    return type(value) is type(wanted) and value == wanted


def _plain(value: object) -> str:
    """A claim as one short line of plain letters."""
    return "".join(letter if " " <= letter <= "~" else "?" for letter in str(value))[:80]
