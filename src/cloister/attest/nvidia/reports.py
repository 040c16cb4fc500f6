"""Whether GPUs' reports fulfil a policy. Nothing is fetched."""

import hmac
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.x509.ocsp import OCSPResponse
from msgspec import Meta, Struct

from cloister.attest.chain import ecdsa_signed, find_chain, key_fingerprint, read_certificates, subject
from cloister.attest.nvidia import spdm
from cloister.attest.nvidia.ocsp import examine_revocation, read_responses
from cloister.attest.nvidia.spdm import Architecture, DeviceEvidence, GpuReport, architecture
from cloister.checks import Examination, Verdict
from cloister.errors import EvidenceInvalid

if TYPE_CHECKING:
    from cloister.attest.nvidia.manifest import Manifest

VERSION = "[0-9]+([.][0-9]+)*"
SWITCH: Architecture = "LS10"


class GpuPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """Defaults accept any confidential GPU of NVIDIA whose firmware is known good."""

    architectures: tuple[Architecture, ...] = ("HOPPER", "BLACKWELL")
    min_gpus: Annotated[int, Meta(ge=1, le=64)] = 1  # NVSwitches (LS10) count only if nothing else is accepted
    min_driver: Annotated[str, Meta(pattern=f"^({VERSION})?$")] = ""  # Such as `550.90.07`.
    vbios: tuple[str, ...] = ()  # The VBIOS versions accepted, such as `96.00.9F.00.01`; empty: any.
    require_fwid: bool = False  # of reports by older drivers; other firmware is always refused
    measurements: dict[str, tuple[str, ...]] = {}  # hex by index from 0, as manifests count; SPDM's is one more
    allow_unmeasured: bool = False  # relaxation: firmware compared with neither measurements nor manifests
    allow_unseen: bool = False  # Relaxation: accept a node in a TEE that computes on a GPU and shows no evidence of it.
    require_ocsp: bool = False  # for each certificate that NVIDIA issued to a GPU or a manifest

    def __post_init__(self) -> None:
        if not re.fullmatch(f"({VERSION})?", self.min_driver):
            raise ValueError("min_driver is a version such as 550.90.07")
        for index, values in self.measurements.items():
            hexadecimal = values and all(re.fullmatch("([0-9a-fA-F]{2})+", one) for one in values)
            if not hexadecimal or not re.fullmatch("[0-9]{1,3}", index):
                raise ValueError("measurements: hexadecimal values by the number of the measurement")

    def relaxations(self) -> tuple[str, ...]:
        return tuple(name for name in ("allow_unmeasured", "allow_unseen") if getattr(self, name))

    def counted(self, known: list[Architecture | None]) -> int:
        if set(self.architectures) == {SWITCH}:
            return len(known)
        return sum(one != SWITCH for one in known)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part[:9]) for part in version.split("."))


def _check_versions(driver: str, vbios: str, policy: GpuPolicy, found: Examination, known: Architecture | None) -> None:
    if policy.min_driver and known != SWITCH:
        ok = bool(re.fullmatch(VERSION, driver)) and _numbers(driver) >= _numbers(policy.min_driver)
        found.check("driver", ok, f"{driver or 'unknown'} is older than {policy.min_driver}", driver)
    else:
        reason = "a switch has none" if known == SWITCH else "the policy names no floor"
        found.skipped("driver", reason, required=False)
    if policy.vbios:
        accepted = vbios.upper() in {one.upper() for one in policy.vbios}
        found.check("vbios", accepted, f"{vbios or 'unknown'} is not one the policy accepts", vbios)
    else:
        found.skipped("vbios", "the policy names none", required=False)


MAX_MANIFESTS = 64
NVDEC0_INDEX: Final = 35  # Measured only where the video decoder is on.
NVDEC0_OFF: Final = b"\x55"
NVIDIA_ROOTS = frozenset({"a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"})
"""The key of `NVIDIA Device Identity CA`."""


class References(Struct, frozen=True):
    manifests: tuple[bytes, ...] = ()
    ocsp: tuple[bytes, ...] = ()
    manifest_roots: frozenset[str] = frozenset({"dec1dc316477aa851eebdf51327ae9f864bc8d89254657ed1e7eb9168af1e1a3"})
    """The key of `NVIDIA CoRIM signing Root CA`."""


def verify_gpu_reports(
    evidence: bytes,
    nonce: bytes | None,
    *,
    at: datetime,
    policy: GpuPolicy,
    chain: bytes | None = None,
    references: References = References(),  # noqa: B008 (frozen)
    roots: frozenset[str] = NVIDIA_ROOTS,
) -> Verdict:
    """The verdict on all reports at a time. `roots` are fingerprints of keys (SHA-256 of SubjectPublicKeyInfo)."""
    devices = spdm.read_bundle(evidence, chain)
    answers = read_responses(references.ocsp)
    found = Examination()
    manifests = _verify_manifests(references, answers, at, policy, found)
    described: list[dict[str, Any]] = []
    keys: list[str] = []
    for index, device in enumerate(devices):
        one = Examination(prefix=f"gpu {index}: ")
        leaf = _examine_device(device, nonce, at, policy, roots, answers, one)
        switch = leaf is not None and architecture(subject(leaf)) == SWITCH
        _examine_measurements(device.report, policy, manifests, one, switch=switch)
        verdict = one.verdict()
        described.append(dict(verdict.claims))
        keys += [key_fingerprint(leaf)] if leaf else []
        found.include(Verdict(verdict.checks))
    count = policy.counted([one.get("architecture") for one in described])
    holds = count >= policy.min_gpus
    found.check("gpu count", holds, f"{count} reported, the policy asks for {policy.min_gpus}", str(count))
    found.check("gpus distinct", len(set(keys)) == len(keys), "one GPU reported more than once")
    found.claim(gpus=described)
    return found.verdict()


def _verify_manifests(
    references: References, answers: Sequence[OCSPResponse], at: datetime, policy: GpuPolicy, found: Examination
) -> "tuple[Manifest, ...] | None":
    if not references.manifests:
        return None
    if len(references.manifests) > MAX_MANIFESTS:
        raise EvidenceInvalid(f"At most {MAX_MANIFESTS} reference manifests are read.")
    from cloister.attest.nvidia.manifest import verify_manifest  # only this function needs an XML parser

    verified = []
    for number, data in enumerate(references.manifests):
        one = Examination(prefix=f"manifest {number}: ")
        manifest = verify_manifest(data, references.manifest_roots, at, one)
        if manifest is not None:
            examine_revocation(manifest.chain, answers, at, one, required=policy.require_ocsp)
            verified.append(manifest)
        found.include(one.verdict())
    return tuple(verified)


def _examine_device(
    device: DeviceEvidence,
    nonce: bytes | None,
    at: datetime,
    policy: GpuPolicy,
    roots: frozenset[str],
    answers: Sequence[OCSPResponse],
    found: Examination,
) -> x509.Certificate | None:
    report = device.report
    found.claim(**spdm.describe(report.opaque), nonce=report.nonce.hex())
    chain = _examine_signature(device, at, policy, roots, found)
    found.compare("nonce", report.nonce, nonce, "the report answers another nonce")
    if device.stated_nonce:
        same = device.stated_nonce.lower().removeprefix("0x") == report.nonce.hex()
        found.check("stated nonce", same, "the report has another nonce than is written beside it")
    leaf = chain[0] if chain else None
    known = architecture(subject(leaf)) if leaf else None
    _check_versions(spdm.driver_version(report.opaque), spdm.vbios_version(report.opaque), policy, found, known)
    if chain:  # the GPU itself issued its leaf
        examine_revocation(chain[1:], answers, at, found, required=policy.require_ocsp)
    return leaf


def _examine_signature(
    device: DeviceEvidence, at: datetime, policy: GpuPolicy, roots: frozenset[str], found: Examination
) -> tuple[x509.Certificate, ...] | None:
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
    found.claim(chip=subject(leaf), serial=f"{leaf.serial_number:X}")
    known, stated = architecture(subject(leaf)), device.stated_architecture
    found.claim(architecture=known)
    named = f"{subject(leaf)} is {known or 'no GPU that is known'}, stated is {stated[:32] or 'nothing'}"
    reason = f"{named}; the policy accepts {', '.join(policy.architectures)}"
    holds = known in policy.architectures and stated.upper() in ("", known)
    found.check("architecture", holds, reason, str(known))
    certified, reported = spdm.certified_fwid(leaf), report.opaque.get(spdm.FWID)
    if certified is None or reported is None:
        missing = "report" if reported is None else "certificate"
        found.skipped("firmware", f"the {missing} names no firmware", required=policy.require_fwid)
    else:
        found.check("firmware", hmac.compare_digest(certified, reported), "the certificate is of other firmware")
    return chain


def _examine_measurements(
    report: GpuReport, policy: GpuPolicy, manifests: "tuple[Manifest, ...] | None", found: Examination, *, switch: bool
) -> None:
    if policy.measurements:
        lowered = {index: {one.lower() for one in accepted} for index, accepted in policy.measurements.items()}
        measured = {index: report.measurements.get(int(index) + 1, b"").hex() for index in lowered}
        wrong = [index for index, accepted in lowered.items() if measured[index] not in accepted]
        found.check("measurements", not wrong, f"not in the policy: {', '.join(wrong)}")
    if manifests is not None:
        _examine_golden(report, manifests, found, switch=switch)
    elif not policy.measurements:
        if policy.allow_unmeasured:
            any_firmware = "this GPU may run any firmware that NVIDIA ever signed"
            found.check("measurements", False, any_firmware, allowed_by="allow_unmeasured")
        else:
            nothing = "neither the policy's measurements nor a reference manifest was given to compare with"
            found.skipped("measurements", nothing)


def _examine_golden(report: GpuReport, manifests: "Sequence[Manifest]", found: Examination, *, switch: bool) -> None:
    """Driver and VBIOS each against the manifest of the version the report names; a switch has no driver."""
    versions = {} if switch else {"driver": spdm.driver_version(report.opaque)}
    versions["vbios"] = spdm.vbios_version(report.opaque)
    compared: dict[str, Mapping[int, frozenset[bytes]]] = {}
    for name, version in versions.items():
        ours = [one for one in manifests if one.version.upper() == version.upper()]
        if not ours:
            found.failed(f"{name} manifest", f"none that was given and holds is of {version or 'an unknown version'}")
            continue
        golden = min((one.golden for one in ours), key=lambda one: len(_deviating(report, one)))
        wrong = _deviating(report, golden)
        reason = f"measures otherwise than NVIDIA's manifest of {version} at {', '.join(map(str, wrong))}"
        found.check(f"{name} manifest", not wrong, reason, f"{len(golden)} measurements of {version}")
        compared[name] = golden
    both = set.intersection(*map(set, compared.values())) if len(compared) == 2 else set()
    if both:
        found.failed("manifests distinct", "driver and VBIOS claim the same measurements")


def _deviating(report: GpuReport, golden: Mapping[int, frozenset[bytes]]) -> list[int]:
    """Where the report is not as the manifest has it. Manifests count from 0, SPDM from 1."""
    off = report.opaque.get(spdm.NVDEC0_STATUS) == NVDEC0_OFF
    wrong = [index for index, accepted in golden.items() if report.measurements.get(index + 1) not in accepted]
    return [index for index in wrong if not (off and index == NVDEC0_INDEX)]
