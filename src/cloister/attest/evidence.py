"""What a node shows a client. Nothing in it counts before the report's signature and its data are checked:
SHA-512(domain ‖ nonce ‖ channel key ‖ release measurement ‖ hash of GPU evidence ‖ hash of statement) (Petridish §4.1).
GPUs sign SHA-256(domain of GPUs ‖ domain ‖ nonce ‖ channel key ‖ release measurement), so that no other's pass."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cloister.attest.attester import Tee
from cloister.attest.settings import AttestedSettings
from cloister.checks import decode_evidence
from cloister.errors import EvidenceInvalid
from cloister.transparency.proof import ReleaseProof

VERSION = 3
DOMAIN = b"cloister evidence v3\0"
HOST_DOMAIN = b"cloister vault host evidence v3\0"  # A vault host's evidence is no node's.
GPU_DOMAIN = b"cloister gpu nonce v1\0"
NONCE_BYTES = 32
MAX_EVIDENCE_BYTES = 1 << 20

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Moment = Annotated[int, Meta(ge=0, lt=1 << 53)]  # Milliseconds since 1970.
Certificate = Annotated[bytes, Meta(max_length=16384)]


class GpuEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """`data` is a JSON list of reports with certificate chains."""

    kind: Literal["report"]
    data: Annotated[bytes, Meta(max_length=262144)]
    ocsp: Annotated[tuple[Annotated[bytes, Meta(max_length=16384)], ...], Meta(max_length=64)] = ()
    """OCSP responses (DER) for the reports' certificates. NVIDIA signs them, so the node may bring them."""


class VaultHostPin(Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that keeps vaults for the node, and the SHA-256 of the only TLS certificate the node accepts there."""

    address: Annotated[str, Meta(max_length=256)]
    certificate: Digest


class Statement(Struct, frozen=True, forbid_unknown_fields=True):
    """What the node's software states: true if you trust the release."""

    model: Annotated[str, Meta(max_length=256)]
    weights: Digest
    settings: AttestedSettings
    settings_hash: Digest  # Of `settings`: the reader computes it again.
    levels: Annotated[tuple[Annotated[str, Meta(max_length=32)], ...], Meta(max_length=16)] = ()
    missing_layers: tuple[Annotated[str, Meta(max_length=64)], ...] = ()
    started: int = 0  # Unix seconds; changes when the node starts again, and so does its channel key.
    vault_hosts: Annotated[tuple[VaultHostPin, ...], Meta(max_length=4)] = ()
    made_ms: Moment = 0  # When this was stated, by the node's own clock.
    key_until_ms: Moment = 0  # the channel key is held, unless a flood of messages uses it up before
    code: Literal["release", "unmeasured"] = "unmeasured"  # release: only its files and packages run
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0  # in this machine, all shown by the evidence; 0: none shown


class NodeEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, Meta(ge=1)]
    tee: Tee
    report: Annotated[bytes, Meta(max_length=65536)]
    channel_key: Digest
    measurement: Digest  # SHA-256 of the release's manifest; of the running source where there is no release.
    statement: Annotated[bytes, Meta(max_length=16384)]  # JSON of Statement, as bytes: what was hashed is what is read.
    certificates: Annotated[tuple[Certificate, ...], Meta(max_length=16)] = ()
    collateral: Annotated[bytes, Meta(max_length=262144)] = b""
    release: ReleaseProof | None = None
    gpu: GpuEvidence | None = None
    vault_hosts: Annotated[tuple[NodeEvidence, ...], Meta(max_length=4)] = ()
    """For the same nonce, with the hash of the TLS certificate, which the statement pins, instead of a channel key."""

    def report_data(self, nonce: bytes, domain: bytes = DOMAIN) -> bytes:
        gpu = self.gpu.data if self.gpu else b""
        return bind(nonce, self.channel_key, self.measurement, gpu, self.statement, domain)

    def gpu_nonce(self, nonce: bytes, domain: bytes = DOMAIN) -> bytes:
        return gpu_nonce(nonce, self.channel_key, self.measurement, domain)


def bind(
    nonce: bytes, channel_key: bytes, measurement: bytes, gpu: bytes, statement: bytes, domain: bytes = DOMAIN
) -> bytes:
    if not len(nonce) == len(channel_key) == len(measurement) == 32:
        raise EvidenceInvalid("A nonce, a channel key and a measurement have 32 bytes each.")
    gpu_hash = hashlib.sha256(gpu).digest() if gpu else bytes(32)
    parts = (domain, nonce, channel_key, measurement, gpu_hash, hashlib.sha256(statement).digest())
    return hashlib.sha512(b"".join(parts)).digest()


def gpu_nonce(nonce: bytes, channel_key: bytes, measurement: bytes, domain: bytes = DOMAIN) -> bytes:
    if not len(nonce) == len(channel_key) == len(measurement) == 32:
        raise EvidenceInvalid("A nonce, a channel key and a measurement have 32 bytes each.")
    return hashlib.sha256(b"".join((GPU_DOMAIN, domain, nonce, channel_key, measurement))).digest()


def write_evidence(evidence: NodeEvidence) -> bytes:
    return msgspec.json.encode(evidence)


class _Versioned(Struct):
    version: Annotated[int, Meta(ge=1)]


def read_evidence(data: bytes) -> NodeEvidence:
    found = decode_evidence(data, _Versioned, "Evidence", limit=MAX_EVIDENCE_BYTES).version
    if found != VERSION:
        hint = "Update the client." if found > VERSION else "The node is older: its operator updates it."
        raise EvidenceInvalid(f"The evidence has version {found}, not {VERSION}.", hint=hint)
    return decode_evidence(data, NodeEvidence, "Evidence")


def read_statement(data: bytes) -> Statement:
    return decode_evidence(data, Statement, "The node's statement")
