"""A release's proof as evidence and files carry it: that a log has the release. Made and checked by `proof`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.checks import decode_evidence

MAX_PROOF_BYTES = 1 << 20

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class ReleaseProof(Struct, frozen=True, forbid_unknown_fields=True):
    """That the node's release is in the log: the manifest, its place, and proofs against a signed checkpoint.

    `consistency` leads from the tree the client saw last (`since`, 0: none) to this checkpoint.
    """

    manifest: Annotated[bytes, Meta(max_length=262144)]
    index: Annotated[int, Meta(ge=0)] = 0
    inclusion: Annotated[tuple[Digest, ...], Meta(max_length=64)] = ()
    checkpoint: Annotated[str, Meta(max_length=65536)] = ""
    since: Annotated[int, Meta(ge=0)] = 0
    consistency: Annotated[tuple[Digest, ...], Meta(max_length=128)] = ()
    log_key: Annotated[str, Meta(max_length=1024)] = ""
    """The log's verifier key as the node knows it: a client that has one of its own compares, and one that trusts on
    first use remembers it."""
    sigstore: Annotated[bytes, Meta(max_length=262144)] = b""


def write_proof(proof: ReleaseProof) -> bytes:
    return msgspec.json.encode(proof)


def read_proof(data: bytes) -> ReleaseProof:
    """The proof, or EvidenceInvalid."""
    return decode_evidence(data, ReleaseProof, "A release's proof", limit=MAX_PROOF_BYTES)
