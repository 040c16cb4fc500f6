"""A release's proof in a file of its own, as JSON, the way evidence carries it."""

from __future__ import annotations

import msgspec

from cloister.attest.evidence import ReleaseProof
from cloister.errors import EvidenceInvalid

MAX_PROOF_BYTES = 1 << 20


def write_proof(proof: ReleaseProof) -> bytes:
    return msgspec.json.encode(proof)


def read_proof(data: bytes) -> ReleaseProof:
    """The proof, or EvidenceInvalid."""
    if len(data) > MAX_PROOF_BYTES:
        raise EvidenceInvalid(f"A release's proof may have at most {MAX_PROOF_BYTES} bytes.")
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(f"The release's proof does not decode ({type(wrong).__name__}).") from None


_decoder: msgspec.json.Decoder[ReleaseProof] = msgspec.json.Decoder(ReleaseProof)
