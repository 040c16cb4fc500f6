"""The policy for a node's GPUs, and whether their reports fulfil it: signature, root, nonce, chip, versions, firmware.

Revocation (OCSP) and NVIDIA's reference manifests need more than the report: the policy may name measurements, else
that check shows as skipped. NVIDIA's service does both (`cloister.attest.nvidia.token`).
"""

from __future__ import annotations

import hmac
import re
from datetime import datetime
from typing import Annotated, Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from msgspec import Meta, Struct

from cloister.attest.chain import ecdsa_signed, find_chain, key_fingerprint, read_certificates, subject
from cloister.attest.nvidia.spdm import (
    FWID,
    Architecture,
    DeviceEvidence,
    GpuReport,
    architecture,
    certified_fwid,
    describe,
    driver_version,
    read_bundle,
    vbios_version,
)
from cloister.checks import Examination, Verdict

VERSION = "[0-9]+([.][0-9]+)*"


class GpuPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults accept any confidential GPU of NVIDIA that is what it says, and NVIDIA's own service."""

    architectures: tuple[Architecture, ...] = ("HOPPER", "BLACKWELL")
    min_gpus: Annotated[int, Meta(ge=1, le=64)] = 1
    min_driver: Annotated[str, Meta(pattern=f"^({VERSION})?$")] = ""
    """Such as `550.90.07`."""
    vbios: tuple[str, ...] = ()
    """The VBIOS versions accepted, such as `96.00.9F.00.01`; empty: any."""
    require_fwid: bool = False
    """Refuse a report that does not name its firmware (older drivers); one that names another is refused always."""
    measurements: dict[str, tuple[str, ...]] = {}
    """For reports: accepted values (hex) by index of the measurement, as NVIDIA's reference manifests list them."""
    issuers: tuple[str, ...] = ("https://nras.attestation.nvidia.com",)
    """For tokens: who may have issued them."""
    leeway_seconds: Annotated[int, Meta(ge=0, le=3600)] = 0
    """For tokens: how far clocks may differ."""

    def __post_init__(self) -> None:
        if not re.fullmatch(f"({VERSION})?", self.min_driver):
            raise ValueError("min_driver is a version such as 550.90.07")
        for index, values in self.measurements.items():
            hexadecimal = values and all(re.fullmatch("([0-9a-fA-F]{2})+", one) for one in values)
            if not hexadecimal or not re.fullmatch("[0-9]{1,3}", index):
                raise ValueError("measurements: hexadecimal values by the number of the measurement")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in version.split("."))


def examine_versions(driver: str, vbios: str, policy: GpuPolicy, found: Examination) -> None:
    """Add the checks `driver` and `vbios`."""
    if policy.min_driver:
        ok = bool(re.fullmatch(VERSION, driver)) and _numbers(driver) >= _numbers(policy.min_driver)
        found.check("driver", ok, f"{driver or 'unknown'} is older than {policy.min_driver}", driver)
    else:
        found.skipped("driver", "the policy names no floor", required=False)
    if policy.vbios:
        known = vbios.upper() in {one.upper() for one in policy.vbios}
        found.check("vbios", known, f"{vbios or 'unknown'} is not one the policy accepts", vbios)
    else:
        found.skipped("vbios", "the policy names none", required=False)


NVIDIA_ROOTS = frozenset({"a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"})
"""The key of `NVIDIA Device Identity CA`."""


def verify_gpu_reports(
    evidence: bytes,
    nonce: bytes | None,
    *,
    at: datetime,
    policy: GpuPolicy,
    chain: bytes | None = None,
    roots: frozenset[str] = NVIDIA_ROOTS,
) -> Verdict:
    """The verdict on all reports at a time. `roots` are fingerprints of keys (SHA-256 of SubjectPublicKeyInfo)."""
    devices = read_bundle(evidence, chain)
    found = Examination()
    described: list[dict[str, Any]] = []
    keys: list[str] = []
    for index, device in enumerate(devices):
        one = Examination(prefix=f"gpu {index}: ")
        leaf = _examine_device(device, nonce, at, policy, roots, one)
        verdict = one.verdict()
        described.append(dict(verdict.claims))
        keys += [key_fingerprint(leaf)] if leaf else []
        found.include(Verdict(verdict.checks))
    found.check(
        "gpu count",
        len(devices) >= policy.min_gpus,
        f"{len(devices)} reported, the policy asks for {policy.min_gpus}",
        str(len(devices)),
    )
    found.check("gpus distinct", len(set(keys)) == len(keys), "one GPU reported more than once")
    found.claim("gpus", described)
    return found.verdict()


def _examine_device(
    device: DeviceEvidence,
    nonce: bytes | None,
    at: datetime,
    policy: GpuPolicy,
    roots: frozenset[str],
    found: Examination,
) -> x509.Certificate | None:
    report = device.report
    for name, value in describe(report.opaque).items():
        found.claim(name, value)
    found.claim("nonce", report.nonce.hex())
    leaf = _examine_signature(device, at, policy, roots, found)
    if nonce is None:
        found.skipped("nonce", "nothing to compare with was given", required=False)
    else:
        found.check("nonce", hmac.compare_digest(report.nonce, nonce), "the report answers another nonce")
    if device.stated_nonce:
        same = device.stated_nonce.lower().removeprefix("0x") == report.nonce.hex()
        found.check("stated nonce", same, "the report has another nonce than is written beside it")
    examine_versions(driver_version(report.opaque), vbios_version(report.opaque), policy, found)
    _examine_measurements(report, policy, found)
    found.skipped("revocation", "needs NVIDIA's OCSP service; its tokens answer for it", required=False)
    return leaf


def _examine_signature(
    device: DeviceEvidence, at: datetime, policy: GpuPolicy, roots: frozenset[str], found: Examination
) -> x509.Certificate | None:
    certificates = read_certificates(device.chain) if device.chain else ()
    if not certificates:
        found.skipped("certificate chain", "the report comes without certificates")
        found.skipped("signature", "the GPU's certificate is not known")
        return None
    chain = find_chain(certificates, roots, at, found)
    if chain is None:
        found.skipped("signature", "the GPU's certificate is not to be trusted")
        return None
    leaf, report = chain[0], device.report
    signed = ecdsa_signed(leaf.public_key(), ec.SECP384R1, SHA384(), report.signature, report.signed)
    found.check("signature", signed, "the report is not signed by the GPU's key")
    found.claim("chip", subject(leaf))
    found.claim("serial", f"{leaf.serial_number:X}")
    _examine_architecture(leaf, device.stated_architecture, policy, found)
    _examine_firmware(leaf, device.report, policy, found)
    return leaf


def _examine_architecture(leaf: x509.Certificate, stated: str, policy: GpuPolicy, found: Examination) -> None:
    known = architecture(subject(leaf))
    found.claim("architecture", known)
    found.check(
        "architecture",
        known in policy.architectures and stated.upper() in ("", known),
        f"{subject(leaf)} is {known or 'no GPU that is known'}, stated is {stated[:32] or 'nothing'}; "
        f"the policy accepts {', '.join(policy.architectures)}",
        str(known),
    )


def _examine_firmware(leaf: x509.Certificate, report: GpuReport, policy: GpuPolicy, found: Examination) -> None:
    certified, reported = certified_fwid(leaf), report.opaque.get(FWID)
    if certified is None or reported is None:
        missing = "report" if reported is None else "certificate"
        found.skipped("firmware", f"the {missing} names no firmware", required=policy.require_fwid)
    else:
        found.check("firmware", hmac.compare_digest(certified, reported), "the certificate is of other firmware")


def _examine_measurements(report: GpuReport, policy: GpuPolicy, found: Examination) -> None:
    if not policy.measurements:
        found.skipped("measurements", "the policy names none to compare with", required=False)
        return
    wrong = [
        index
        for index, accepted in policy.measurements.items()
        if report.measurements.get(int(index), b"").hex() not in {one.lower() for one in accepted}
    ]
    found.check("measurements", not wrong, f"not as the policy has them: {', '.join(wrong)}")
