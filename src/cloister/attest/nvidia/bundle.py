"""The forms in which reports of GPUs travel: NVIDIA's JSON of several, or one bare report with its chain beside it.

Nothing a bundle says around the reports is believed; what it says wrongly is shown.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.attest.nvidia.spdm import GET_MEASUREMENTS, VERSION, GpuReport, read_report
from cloister.errors import EvidenceInvalid

MAX_BUNDLE_BYTES = 262144
MAX_DEVICES = 64


class _Entry(Struct, frozen=True):
    evidence: str
    certificate: str = ""
    arch: str = ""
    nonce: str = ""


class _Request(Struct, frozen=True):
    """What one sends to NVIDIA's service: the same entries under one nonce."""

    evidence_list: Annotated[tuple[_Entry, ...], Meta(max_length=MAX_DEVICES)]
    arch: str = ""
    nonce: str = ""


_entries: msgspec.json.Decoder[tuple[_Entry, ...]] = msgspec.json.Decoder(
    Annotated[tuple[_Entry, ...], Meta(max_length=MAX_DEVICES)]
)


class DeviceEvidence(Struct, frozen=True):
    """One device's report and certificates, and what the bundle says of it (`""` where it says nothing)."""

    report: GpuReport
    chain: bytes
    stated_architecture: str = ""
    stated_nonce: str = ""


def read_bundle(data: bytes, chain: bytes | None) -> tuple[DeviceEvidence, ...]:
    """The devices' evidence, or EvidenceInvalid. `chain` (PEM) serves those that bring none."""
    if len(data) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"GPU evidence may have at most {MAX_BUNDLE_BYTES} bytes.")
    if data.startswith(bytes((VERSION, GET_MEASUREMENTS))):
        return (DeviceEvidence(read_report(data), chain or b""),)
    text = data.strip()
    if not text.startswith((b"[", b"{")):
        return (DeviceEvidence(read_report(_decode_text(text)), chain or b""),)
    entries = _read_entries(text)
    if not entries:
        raise EvidenceInvalid("The GPU evidence is of no GPU.")
    return tuple(
        DeviceEvidence(
            read_report(_decode_text(entry.evidence.encode())),
            _decode_chain(entry.certificate.encode()) or chain or b"",
            entry.arch,
            entry.nonce,
        )
        for entry in entries
    )


def _read_entries(text: bytes) -> tuple[_Entry, ...]:
    try:
        if text.startswith(b"["):
            return _entries.decode(text)
        request = msgspec.json.decode(text, type=_Request)
    except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
        raise EvidenceInvalid(
            f"The GPU evidence does not decode ({type(wrong).__name__}).",
            hint="It is a JSON list of objects with `evidence` and `certificate`, or one report in hex or base64.",
        ) from None
    return tuple(
        msgspec.structs.replace(entry, arch=entry.arch or request.arch, nonce=entry.nonce or request.nonce)
        for entry in request.evidence_list
    )


def _decode_chain(certificate: bytes) -> bytes:
    """PEM, or PEM in base64 as NVIDIA's tools write it."""
    return certificate if b"-----BEGIN" in certificate else _decode_base64(certificate)


def _decode_text(text: bytes) -> bytes:
    """A report written in hex or base64. Thousands of letters that are all hex are not base64 by chance."""
    packed = b"".join(text.split())
    if re.fullmatch(rb"([0-9a-fA-F]{2})+", packed):
        return bytes.fromhex(packed.decode())
    return _decode_base64(packed)


def _decode_base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(b"".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise EvidenceInvalid("GPU evidence or its certificate is neither hex nor base64.") from None
