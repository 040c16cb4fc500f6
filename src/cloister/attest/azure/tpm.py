"""The bytes of a TPM's quote, taken apart. Checks only their form.

TCG TPM 2.0 Library part 2, §10.12: TPMS_ATTEST with magic, type, the signer's name, the asker's data (the nonce),
clock, firmware, and for a quote the PCRs selected and the digest over them. All numbers are big-endian.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from cloister.errors import EvidenceInvalid

MAX_BYTES: Final = 1024
MAGIC: Final = b"\xffTCG"
QUOTE: Final = 0x8018
SHA256: Final = 0x000B
CLOCK_BYTES: Final = 17
PCRS: Final = 24


@dataclass(frozen=True)
class TpmQuote:
    """What the TPM signed: `nonce` is the asker's, `digest` is over the PCRs `selected`, lowest first (SHA-256)."""

    nonce: bytes
    selected: tuple[int, ...]
    digest: bytes

    def covers(self, pcrs: dict[int, bytes]) -> bool:
        """Whether these are the PCRs selected, with the values quoted."""
        if tuple(sorted(pcrs)) != self.selected:
            return False
        return hashlib.sha256(b"".join(pcrs[index] for index in self.selected)).digest() == self.digest


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self.at:
            raise EvidenceInvalid("The TPM's quote ends early.")
        self.at += count
        return self._data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def sized(self) -> bytes:
        return self.take(self.number(2))


def read_tpm_quote(data: bytes) -> TpmQuote:
    """The quote, or EvidenceInvalid."""
    if len(data) > MAX_BYTES:
        raise EvidenceInvalid(f"A TPM's quote may have at most {MAX_BYTES} bytes.")
    quote = _Reader(data)
    if quote.take(4) != MAGIC or quote.number(2) != QUOTE:
        raise EvidenceInvalid("That is no quote of a TPM.")
    quote.sized()
    nonce = quote.sized()
    quote.take(CLOCK_BYTES + 8)
    if quote.number(4) != 1 or quote.number(2) != SHA256:
        raise EvidenceInvalid("The TPM's quote is not over one bank of SHA-256.")
    bitmap = int.from_bytes(quote.take(quote.number(1)), "little")
    digest = quote.sized()
    if quote.at != len(data) or bitmap >> PCRS:
        raise EvidenceInvalid("The TPM's quote has bytes or PCRs too many.")
    return TpmQuote(nonce, tuple(index for index in range(PCRS) if bitmap >> index & 1), digest)
