"""The contract of everything that can speak for a machine: siblings read the kernel's reports or sign themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Tee = Literal["none", "sev-snp", "tdx"]
REPORT_DATA_BYTES = 64


@dataclass(frozen=True)
class Attestation:
    """A report over 64 bytes of the asker's, with what is needed to check it where the machine has that at hand."""

    tee: Tee
    report: bytes
    certificates: tuple[bytes, ...] = ()
    """DER, the report's signer first."""
    collateral: bytes = b""
    """TDX: the JSON dcap-qvl takes."""


class Attester(Protocol):
    """Makes reports."""

    @property
    def tee(self) -> Tee: ...

    def attest(self, report_data: bytes) -> Attestation:
        """A report over exactly these 64 bytes, or a SetupError that says why there is none."""
