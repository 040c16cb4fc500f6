"""The contract of an attester, and the software one, for development: the operator can sign anything with it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import Meta, Struct

from cloister.attest.chain import is_authority
from cloister.attest.snp.certificate import read_bundle
from cloister.checks import Examination, Verdict, decode_evidence
from cloister.errors import EvidenceInvalid, SetupError

Tee = Literal["none", "sev-snp", "tdx"]
REPORT_DATA_BYTES = 64


@dataclass(frozen=True)
class Attestation:
    """A report over the asker's 64 bytes, with what checks it where the machine has that."""

    tee: Tee
    report: bytes
    certificates: tuple[bytes, ...] = ()  # DER, the report's signer first, revocation lists last.
    collateral: bytes = b""  # TDX: the JSON dcap-qvl takes.


class Attester(Protocol):
    @property
    def tee(self) -> Tee: ...

    def attest(self, report_data: bytes) -> Attestation:
        """A report over exactly these 64 bytes, or a SetupError that says why there is none."""


class NoFirmware(SetupError):
    """The kernel has the interface, but nothing behind it."""


def certificates_of(*pieces: bytes) -> tuple[bytes, ...]:
    """The report's signer first: it is the only one that may not sign certificates. Revocation lists come last."""
    try:
        bundle = read_bundle(pieces)
    except EvidenceInvalid as wrong:
        raise SetupError(f"The host's certificates are of no use: {wrong.message}") from None
    certificates = [one.public_bytes(Encoding.DER) for one in sorted(bundle.certificates, key=is_authority)]
    return (*certificates, *(one.public_bytes(Encoding.DER) for one in bundle.revocation_lists))


DOMAIN = b"cloister software report v1\0"
MAX_REPORT_BYTES = 4096
MAX_AGE = timedelta(days=1)
CLOCKS_MAY_DIFFER = timedelta(minutes=5)


class SoftwareReport(Struct, frozen=True, forbid_unknown_fields=True):
    tee: Literal["none"]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    report_data: Annotated[bytes, Meta(min_length=REPORT_DATA_BYTES, max_length=REPORT_DATA_BYTES)]
    made: Annotated[int, Meta(ge=0, lt=1 << 33)]  # Unix seconds.
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class SoftwareAttester:
    tee: Tee = "none"

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._clock = clock

    def attest(self, report_data: bytes) -> Attestation:
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        made = int(self._clock())
        key, signature = self._key.public_key().public_bytes_raw(), self._key.sign(_signed(report_data, made))
        report = SoftwareReport(tee="none", key=key, report_data=report_data, made=made, signature=signature)
        return Attestation("none", msgspec.json.encode(report))


def verify_software(report: bytes, *, at: datetime, allowed: bool, report_data: bytes | None) -> Verdict:
    """Check all that can be checked; `software tee` fails unless `allowed`."""
    read = decode_evidence(report, SoftwareReport, "A software report", limit=MAX_REPORT_BYTES)
    found = Examination()
    found.claim(tee="none", key=read.key.hex(), report_data=read.report_data.hex())
    shown = "allowed by the reader; does not protect against the operator"
    found.check("software tee", allowed, "no hardware stands behind this node: its operator can read everything", shown)
    found.check("report signature", _signature_holds(read), "not made by the key in the report")
    made = datetime.fromtimestamp(read.made, UTC)
    holds = at - MAX_AGE <= made <= at + CLOCKS_MAY_DIFFER
    found.check("report age", holds, f"made at {made:%Y-%m-%d %H:%M:%S} UTC, which is too long ago or to come")
    found.compare("report data", read.report_data, report_data, "the report was made for another nonce or key")
    return found.verdict()


def _signed(report_data: bytes, made: int) -> bytes:
    return DOMAIN + report_data + made.to_bytes(8, "big")


def _signature_holds(report: SoftwareReport) -> bool:
    signed = _signed(report.report_data, report.made)
    try:
        Ed25519PublicKey.from_public_bytes(report.key).verify(report.signature, signed)
    except (InvalidSignature, ValueError):
        return False
    return True
