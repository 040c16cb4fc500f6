"""The bytes of an HCL report (OpenHCL, `igvm_attest`: 32 bytes of header, 1184 for the hardware's report, five numbers,
little-endian, the runtime data, JSON, then zeros) and of a TPM's quote (TCG TPM 2.0 Library part 2, §10.12; big-
endian), taken apart; checks only their form."""

import base64
import hashlib
import struct
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric import rsa
from msgspec import Meta, Struct

from cloister.checks import Reader
from cloister.errors import EvidenceInvalid

MAX_QUOTE_BYTES: Final = 1024
TPM_MAGIC: Final = b"\xffTCG"
QUOTE: Final = 0x8018
TPM_SHA256: Final = 0x000B
CLOCK_BYTES: Final = 17
PCRS: Final = 24


@dataclass(frozen=True)
class TpmQuote:
    """What the TPM signed: `nonce` is the client's, `digest` is over the PCRs `selected`, lowest first (SHA-256)."""

    nonce: bytes
    selected: tuple[int, ...]
    digest: bytes

    def covers(self, pcrs: dict[int, bytes]) -> bool:
        if tuple(sorted(pcrs)) != self.selected:
            return False
        return hashlib.sha256(b"".join(pcrs[index] for index in self.selected)).digest() == self.digest


class TpmReader(Reader):
    order = "big"

    def sized(self) -> bytes:
        return self.take(self.number(2))

    def selection(self) -> tuple[int, ...]:
        if self.number(4) != 1 or self.number(2) != TPM_SHA256:
            raise self._wrong("The TPM's data is not over one bank of SHA-256.")
        bitmap = int.from_bytes(self.take(self.number(1)), "little")
        if bitmap >> PCRS:
            raise self._wrong("The TPM's data is over PCRs that no TPM has.")
        return tuple(index for index in range(PCRS) if bitmap >> index & 1)


def quote_nonce(report_data: bytes) -> bytes:
    """The quote's nonce for the 64 bytes of a node's binding. A TPM whose longest hash is SHA-384 takes at most 50."""
    return hashlib.sha256(report_data).digest()


def read_tpm_quote(data: bytes) -> TpmQuote:
    if len(data) > MAX_QUOTE_BYTES:
        raise EvidenceInvalid(f"A TPM's quote may have at most {MAX_QUOTE_BYTES} bytes.")
    quote = TpmReader(data, "The TPM's quote")
    if quote.take(4) != TPM_MAGIC or quote.number(2) != QUOTE:
        raise EvidenceInvalid("This is not a TPM's quote.")
    quote.sized()
    nonce = quote.sized()
    quote.take(CLOCK_BYTES + 8)
    selected = quote.selection()
    digest = quote.sized()
    if quote.left:
        raise EvidenceInvalid("The TPM's quote has too many bytes.")
    return TpmQuote(nonce, selected, digest)


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
    try:
        decoded = msgspec.json.decode(runtime.rstrip(b"\0"), type=RuntimeData)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(f"The HCL report's runtime data does not decode ({type(wrong).__name__}).") from None
    digest = _HASHES[algorithm](runtime).digest()
    report = data[HEADER_BYTES : HEADER_BYTES + REPORT_BYTES]
    return HclReport(_KINDS[kind], report, digest.ljust(64, b"\0"), decoded)


def attestation_key(runtime: RuntimeData) -> rsa.RSAPublicKey | None:
    """The key that signs the vTPM's quotes; None if the runtime data names none, several, or a weak one."""
    named = [key for key in runtime.keys if key.kid == ATTESTATION_KEY]
    if len(named) != 1 or named[0].kty != "RSA" or len(named[0].n) > 1024 or len(named[0].e) > 8:
        return None
    try:
        padded = (part + "=" * (-len(part) % 4) for part in (named[0].n, named[0].e))
        n, e = (int.from_bytes(base64.b64decode(part, altchars=b"-_", validate=True), "big") for part in padded)
        key = rsa.RSAPublicNumbers(e, n).public_key()
    except ValueError:
        return None
    return key if key.key_size >= 2048 else None
