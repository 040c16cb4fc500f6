"""The bytes of an HCL report, taken apart; checks only their form. OpenHCL, `igvm_attest`: 32 bytes of header, 1184 for
the hardware's report, five numbers (little-endian), the runtime data (JSON), then zeros."""

from __future__ import annotations

import base64
import hashlib
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid

MAGIC: Final = b"HCLA"
MAX_BYTES: Final = 16384
HEADER_BYTES: Final = 32
REPORT_BYTES: Final = 1184
_REQUEST: Final = struct.Struct("<5I")
_KINDS: Final[dict[int, Literal["sev-snp", "tdx"]]] = {2: "sev-snp", 4: "tdx"}
_HASHES: Final = {1: hashlib.sha256, 2: hashlib.sha384, 3: hashlib.sha512}
ATTESTATION_KEY: Final = "HCLAkPub"


class _Key(Struct, frozen=True):
    kid: str = ""
    kty: str = ""
    n: str = ""
    e: str = ""


class RuntimeData(Struct, frozen=True, rename="kebab"):
    keys: Annotated[tuple[_Key, ...], Meta(max_length=16)]
    vm_configuration: dict[str, Any] = {}
    user_data: Annotated[str, Meta(max_length=128)] = ""


@dataclass(frozen=True)
class HclReport:
    """`report` is SNP's own; of TDX it is the TD report, which only a quote makes worth something."""

    tee: Literal["sev-snp", "tdx"]
    report: bytes
    report_data: bytes  # What the hardware's report data must be: the hash of the runtime data, then zeros.
    runtime: RuntimeData


def read_hcl(data: bytes) -> HclReport:
    if len(data) > MAX_BYTES:
        raise EvidenceInvalid(f"An HCL report may have at most {MAX_BYTES} bytes.")
    start = HEADER_BYTES + REPORT_BYTES + _REQUEST.size
    if not data.startswith(MAGIC) or len(data) < start:
        raise EvidenceInvalid("The HCL report does not begin with HCLA, or is shorter than its headers.")
    size, _, kind, algorithm, length = _REQUEST.unpack_from(data, HEADER_BYTES + REPORT_BYTES)
    if kind not in _KINDS or algorithm not in _HASHES:
        raise EvidenceInvalid(f"The HCL report is of kind {kind} with hash {algorithm}; 2 (SNP) or 4 (TDX) is known.")
    runtime, rest = data[start : start + length], data[start + length :]
    if len(runtime) != length or size != length + _REQUEST.size or any(rest):
        raise EvidenceInvalid("The HCL report's runtime data is not as long as it says.")
    digest = _HASHES[algorithm](runtime).digest()
    report = data[HEADER_BYTES : HEADER_BYTES + REPORT_BYTES]
    return HclReport(_KINDS[kind], report, digest.ljust(64, b"\0"), _read_runtime(runtime))


def _read_runtime(data: bytes) -> RuntimeData:
    try:
        return msgspec.json.decode(data.rstrip(b"\0"), type=RuntimeData)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(f"The HCL report's runtime data does not decode ({type(wrong).__name__}).") from None


def attestation_key(runtime: RuntimeData) -> rsa.RSAPublicKey | None:
    """The key that signs the vTPM's quotes; None if the runtime data names none, several, or a weak one."""
    named = [key for key in runtime.keys if key.kid == ATTESTATION_KEY]
    if len(named) != 1 or named[0].kty != "RSA" or len(named[0].n) > 1024 or len(named[0].e) > 8:
        return None
    try:
        n, e = (int.from_bytes(_base64url(part), "big") for part in (named[0].n, named[0].e))
        key = rsa.RSAPublicNumbers(e, n).public_key()
    except ValueError:
        return None
    return key if key.key_size >= 2048 else None


def _base64url(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
