"""For development: a node that attests by its own word. The flow is the real one, the trust is not there.

Whoever runs the machine can sign anything this way. A client refuses it unless told otherwise.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta, Struct

from cloister.attest.attester import REPORT_DATA_BYTES, Attestation, Tee
from cloister.checks import Examination, Verdict, decode_evidence
from cloister.errors import SetupError

DOMAIN = b"cloister software report v1\0"
MAX_REPORT_BYTES = 4096
MAX_AGE = timedelta(days=1)
CLOCKS_MAY_DIFFER = timedelta(minutes=5)


class SoftwareReport(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON on the wire; says of itself that no hardware stands behind it."""

    tee: Literal["none"]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    report_data: Annotated[bytes, Meta(min_length=REPORT_DATA_BYTES, max_length=REPORT_DATA_BYTES)]
    made: Annotated[int, Meta(ge=0, lt=1 << 33)]
    """Unix seconds."""
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]

    @property
    def signed(self) -> bytes:
        return _signed(self.report_data, self.made)


class SoftwareAttester:
    """Signs with a key made at start."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._clock = clock

    @property
    def tee(self) -> Tee:
        return "none"

    def attest(self, report_data: bytes) -> Attestation:
        """A report over exactly these 64 bytes."""
        if len(report_data) != REPORT_DATA_BYTES:
            raise SetupError(f"A report covers {REPORT_DATA_BYTES} bytes, not {len(report_data)}.")
        made = int(self._clock())
        report = SoftwareReport(
            tee="none",
            key=self._key.public_key().public_bytes_raw(),
            report_data=report_data,
            made=made,
            signature=self._key.sign(_signed(report_data, made)),
        )
        return Attestation("none", msgspec.json.encode(report))


def verify_software(report: bytes, *, at: datetime, allowed: bool, report_data: bytes | None) -> Verdict:
    """Check all that can be checked; the check `software tee` fails unless the reader allows one."""
    read = decode_evidence(report, SoftwareReport, "A software report", limit=MAX_REPORT_BYTES)
    examination = Examination()
    examination.claim("tee", "none")
    examination.claim("key", read.key.hex())
    examination.claim("report_data", read.report_data.hex())
    examination.check(
        "software tee",
        allowed,
        "no hardware stands behind this node: whoever runs it can read everything",
        "allowed by the reader; protects against nobody who runs the machine",
    )
    examination.check("report signature", _signature_holds(read), "not made by the key in the report")
    made = datetime.fromtimestamp(read.made, UTC)
    examination.check(
        "report age",
        at - MAX_AGE <= made <= at + CLOCKS_MAY_DIFFER,
        f"made at {made:%Y-%m-%d %H:%M:%S} UTC, which is too long ago or to come",
    )
    if report_data is None:
        examination.skipped("report data", "no nonce was given", required=False)
    else:
        same = hmac.compare_digest(read.report_data, report_data)
        examination.check("report data", same, "the report was made for another nonce or key")
    return examination.verdict()


def _signed(report_data: bytes, made: int) -> bytes:
    return DOMAIN + report_data + made.to_bytes(8, "big")


def _signature_holds(report: SoftwareReport) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(report.key).verify(report.signature, report.signed)
    except (InvalidSignature, ValueError):
        return False
    return True
