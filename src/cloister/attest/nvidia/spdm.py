"""The bytes of a GPU's report, taken apart. Checks nothing but their form.

Reports travel as NVIDIA's JSON of several, or one bare with its chain beside it. Nothing that is said around the
reports is believed; what is said wrongly is shown.

DMTF DSP0274 (SPDM) 1.1 §10.11: the GET_MEASUREMENTS request, which holds the asker's nonce, then the MEASUREMENTS
response; the signature is over both, up to itself. The opaque data is a list of (type, size, value) of NVIDIA's own.
All numbers little-endian.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cloister.errors import EvidenceInvalid

MAX_REPORT_BYTES = 65536
VERSION = 0x11
GET_MEASUREMENTS = 0xE0
MEASUREMENTS = 0x60
SIGNATURE_REQUESTED = 0x01
REQUEST_BYTES = 37
SIGNATURE_BYTES = 96
DMTF = 1


@dataclass(frozen=True)
class GpuReport:
    """A report as the GPU signed it. `nonce` is the asker's, from the request."""

    nonce: bytes
    measurements: Mapping[int, bytes]
    opaque: Mapping[int, bytes]
    signed: bytes
    signature: bytes


def read_report(data: bytes) -> GpuReport:
    """The report, or EvidenceInvalid."""
    if len(data) > MAX_REPORT_BYTES:
        raise EvidenceInvalid(f"A GPU report may have at most {MAX_REPORT_BYTES} bytes.")
    request, response = data[:REQUEST_BYTES], data[REQUEST_BYTES:]
    if len(response) < 8:
        raise EvidenceInvalid("The GPU report is shorter than its headers.")
    if request[:2] != bytes((VERSION, GET_MEASUREMENTS)) or response[:2] != bytes((VERSION, MEASUREMENTS)):
        raise EvidenceInvalid("The GPU report is no SPDM 1.1 measurements request with its response.")
    if not request[2] & SIGNATURE_REQUESTED:
        raise EvidenceInvalid("The GPU report's request asked for no signature.")
    blocks = response[4]
    record_end = 8 + int.from_bytes(response[5:8], "little")
    opaque_start = record_end + 34
    opaque_end = opaque_start + int.from_bytes(response[opaque_start - 2 : opaque_start], "little")
    if len(response) != opaque_end + SIGNATURE_BYTES:
        raise EvidenceInvalid(f"The GPU report has {len(data)} bytes, which is not what its own lengths add up to.")
    return GpuReport(
        nonce=request[4:36],
        measurements=MappingProxyType(_read_measurements(response[8:record_end], blocks)),
        opaque=MappingProxyType(_read_opaque(response[opaque_start:opaque_end])),
        signed=data[:-SIGNATURE_BYTES],
        signature=data[-SIGNATURE_BYTES:],
    )


def _read_measurements(record: bytes, blocks: int) -> dict[int, bytes]:
    """By index: block header (index, specification, size), then the value's type, its size and the value."""
    values: dict[int, bytes] = {}
    at = 0
    for _ in range(blocks):
        header = record[at : at + 7]
        size = int.from_bytes(header[2:4], "little")
        if len(header) < 7 or header[1] != DMTF or size != 3 + int.from_bytes(header[5:7], "little"):
            raise EvidenceInvalid("A measurement of the GPU report is not of the DMTF form.")
        if header[0] in values or at + 4 + size > len(record):
            raise EvidenceInvalid("The GPU report's measurements repeat an index or end early.")
        values[header[0]] = record[at + 7 : at + 4 + size]
        at += 4 + size
    if at != len(record):
        raise EvidenceInvalid("The GPU report has more measurements than it counts.")
    return values


def _read_opaque(data: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        kind, size = int.from_bytes(data[at : at + 2], "little"), int.from_bytes(data[at + 2 : at + 4], "little")
        if at + 4 + size > len(data) or kind in fields:
            raise EvidenceInvalid("The GPU report's opaque data repeats a field or ends within one.")
        fields[kind] = data[at + 4 : at + 4 + size]
        at += 4 + size
    return fields


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
