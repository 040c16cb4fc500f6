"""The bytes of a TPM's quote (TCG TPM 2.0 Library part 2, §10.12: TPMS_ATTEST), taken apart; checks only their form.
All numbers are big-endian."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cloister.errors import CloisterError, EvidenceInvalid

MAX_BYTES: Final = 1024
MAGIC: Final = b"\xffTCG"
QUOTE: Final = 0x8018
SHA256: Final = 0x000B
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


class Reader:
    """Takes a TPM's bytes apart, front to back; raises `wrong` where the data ends early."""

    def __init__(self, data: bytes, wrong: type[CloisterError] = EvidenceInvalid) -> None:
        self._data = data
        self._wrong = wrong
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise self._wrong("The TPM's data ends early.")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def sized(self) -> bytes:
        return self.take(self.number(2))

    def nested(self) -> Reader:
        return Reader(self.sized(), self._wrong)

    def selection(self) -> tuple[int, ...]:
        """TPML_PCR_SELECTION: the PCRs selected, of SHA-256's bank alone."""
        if self.number(4) != 1 or self.number(2) != SHA256:
            raise self._wrong("The TPM's data is not over one bank of SHA-256.")
        bitmap = int.from_bytes(self.take(self.number(1)), "little")
        if bitmap >> PCRS:
            raise self._wrong("The TPM's data is over PCRs that no TPM has.")
        return tuple(index for index in range(PCRS) if bitmap >> index & 1)


def quote_nonce(report_data: bytes) -> bytes:
    """The quote's nonce for the 64 bytes of a node's binding. A TPM whose longest hash is SHA-384 takes at most 50."""
    return hashlib.sha256(report_data).digest()


def read_tpm_quote(data: bytes) -> TpmQuote:
    if len(data) > MAX_BYTES:
        raise EvidenceInvalid(f"A TPM's quote may have at most {MAX_BYTES} bytes.")
    quote = Reader(data)
    if quote.take(4) != MAGIC or quote.number(2) != QUOTE:
        raise EvidenceInvalid("This is not a TPM's quote.")
    quote.sized()
    nonce = quote.sized()
    quote.take(CLOCK_BYTES + 8)
    selected = quote.selection()
    digest = quote.sized()
    if quote.at != len(data):
        raise EvidenceInvalid("The TPM's quote has too many bytes.")
    return TpmQuote(nonce, selected, digest)
