"""A GPU's report taken apart, form alone: GET_MEASUREMENTS, then MEASUREMENTS (DMTF DSP0274 1.1 §10.11), all signed."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from cryptography import x509
from msgspec import Meta, Struct

from cloister.checks import Reader, decode_evidence, decode_text
from cloister.errors import EvidenceInvalid

MAX_REPORT_BYTES = 65536
VERSION = 0x11
GET_MEASUREMENTS = 0xE0
MEASUREMENTS = 0x60
SIGNATURE_REQUESTED = 0x01
REQUEST_BYTES = 37
NONCE_BYTES = 32
SIGNATURE_BYTES = 96
DMTF = 1


@dataclass(frozen=True)
class GpuReport:
    """A report as the GPU signed it. `nonce` is the asker's, from the request; `measurements` are by SPDM's index."""

    nonce: bytes
    measurements: Mapping[int, bytes]
    opaque: Mapping[int, bytes]
    signed: bytes
    signature: bytes


def read_report(data: bytes) -> GpuReport:
    if len(data) > MAX_REPORT_BYTES:
        raise EvidenceInvalid(f"A GPU report may have at most {MAX_REPORT_BYTES} bytes.")
    report = Reader(data, "The GPU report")
    request, response = report.take(REQUEST_BYTES), report.take(5)
    if request[:2] != bytes((VERSION, GET_MEASUREMENTS)) or response[:2] != bytes((VERSION, MEASUREMENTS)):
        raise EvidenceInvalid("The GPU report is no SPDM 1.1 measurements request with its response.")
    if not request[2] & SIGNATURE_REQUESTED:
        raise EvidenceInvalid("The GPU report's request asked for no signature.")
    measurements = _read_measurements(report.take(report.number(3)), blocks=response[4])
    report.take(NONCE_BYTES)  # the GPU's own
    opaque = _read_opaque(report.take(report.number(2)))
    signed, signature = data[: report.at], report.take(SIGNATURE_BYTES)
    if data[report.at :] not in (b"", b"\0"):  # some tools end a Hopper's report as if it were text
        raise EvidenceInvalid(f"The GPU report has {len(data)} bytes, which is not what its own lengths add up to.")
    return GpuReport(request[4:36], MappingProxyType(measurements), MappingProxyType(opaque), signed, signature)


def _read_measurements(record: bytes, blocks: int) -> dict[int, bytes]:
    """By index: block header (index, specification, size), then the value's type, its size and the value."""
    values: dict[int, bytes] = {}
    rest = Reader(record, "The GPU report's measurements")
    for _ in range(blocks):
        index, specification, size, _, value_size = (rest.number(count) for count in (1, 1, 2, 1, 2))
        if specification != DMTF or size != 3 + value_size or index in values:
            raise EvidenceInvalid("A measurement of the GPU report is not of the DMTF form, or repeats an index.")
        values[index] = rest.take(value_size)
    if rest.left:
        raise EvidenceInvalid("The GPU report has more measurements than it counts.")
    return values


def _read_opaque(data: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    rest = Reader(data, "The GPU report's opaque data")
    while rest.left:
        kind, size = rest.number(2), rest.number(2)
        if kind in fields:
            raise EvidenceInvalid("The GPU report's opaque data repeats a field.")
        fields[kind] = rest.take(size)
    return fields


MAX_BUNDLE_BYTES = 262144
MAX_DEVICES = 64


class _Entry(Struct, frozen=True):
    evidence: str
    certificate: str = ""
    arch: str = ""
    nonce: str = ""


_Entries = Annotated[tuple[_Entry, ...], Meta(max_length=MAX_DEVICES)]


class DeviceEvidence(Struct, frozen=True):
    """One device's report and certificates, and what the bundle states (`""` where it states nothing)."""

    report: GpuReport
    chain: bytes
    stated_architecture: str = ""
    stated_nonce: str = ""


def read_bundle(data: bytes, chain: bytes | None) -> tuple[DeviceEvidence, ...]:
    if len(data) > MAX_BUNDLE_BYTES:
        raise EvidenceInvalid(f"GPU evidence may have at most {MAX_BUNDLE_BYTES} bytes.")
    if data.startswith(bytes((VERSION, GET_MEASUREMENTS))):
        return (DeviceEvidence(read_report(data), chain or b""),)
    text = data.strip()
    if not text.startswith(b"["):
        return (DeviceEvidence(read_report(_decoded(text)), chain or b""),)
    hint = "It is a JSON list of objects with `evidence` and `certificate`, or one report in hex or base64."
    entries = decode_evidence(text, _Entries, "The GPU evidence", hint=hint)
    if not entries:
        raise EvidenceInvalid("The GPU evidence is of no GPU.")
    found = []
    for entry in entries:
        pem = entry.certificate.encode()  # or PEM in base64, as NVIDIA's tools write it
        pem = pem if b"-----BEGIN" in pem else _decoded(pem)
        report = read_report(_decoded(entry.evidence.encode()))
        found.append(DeviceEvidence(report, pem or chain or b"", entry.arch, entry.nonce))
    return tuple(found)


def _decoded(text: bytes) -> bytes:
    if (data := decode_text(text)) is None:
        raise EvidenceInvalid("GPU evidence or its certificate is neither hex nor base64.")
    return data


Architecture = Literal["HOPPER", "BLACKWELL", "LS10"]  # LS10 is the NVSwitch; it reports in the same form
DRIVER_VERSION: Final = 3
VBIOS_VERSION: Final = 6
NVDEC0_STATUS: Final = 11
FWID: Final = 20
_TEXTS: Final = {15: "chip_sku", 16: "chip_sku_mod", 17: "project", 18: "project_sku", 19: "project_sku_mod"}
_BYTES: Final = {
    **{4: "gpu_info", 13: "cpr_info", 14: "board_id", NVDEC0_STATUS: "nvdec0_status", FWID: "fwid"},
    **{21: "protected_pcie", 33: "system_enable", 34: "opaque_version", 36: "features"},
}

_CHIPS: Final[tuple[tuple[str, Architecture], ...]] = (("GH", "HOPPER"), ("GB", "BLACKWELL"), ("LS_10 ", "LS10"))

# TCG DICE: the composite device id of Hopper ends in its firmware's digest, TcbInfo of Blackwell lists digests.
_DICE_DEVICE_ID = x509.ObjectIdentifier("2.23.133.5.4.1")
_DICE_TCB_INFO = x509.ObjectIdentifier("2.23.133.5.4.1.1")
# The DER of one SHA-384 digest, and where DiceTcbInfo begins its list of them, `fwids [6]`.
_SHA384_FWID: Final = bytes.fromhex("303d06096086480165030402020430")
_FIRST_FWID: Final = re.compile(rb"\xa6(?:[\x00-\x7f]|\x81.|\x82..)" + re.escape(_SHA384_FWID) + rb"(.{48})", re.DOTALL)


def architecture(chip: str) -> Architecture | None:
    """The generation of a chip by the name NVIDIA gives it in certificates: `GH100 A01 GSP FMC LF` is a Hopper."""
    return next((known for prefix, known in _CHIPS if chip.startswith(prefix)), None)


def driver_version(opaque: Mapping[int, bytes]) -> str:
    return _text(opaque.get(DRIVER_VERSION, b""))


def vbios_version(opaque: Mapping[int, bytes]) -> str:
    """`96.00.A5.00.01`: GPUs store eight bytes with the first four turned round, switches the text."""
    value = opaque.get(VBIOS_VERSION, b"")
    if len(value) != 8:
        return _text(value)
    return ".".join(f"{byte:02X}" for byte in (*reversed(value[:4]), value[4]))


def describe(opaque: Mapping[int, bytes]) -> dict[str, Any]:
    claims: dict[str, Any] = {"driver_version": driver_version(opaque), "vbios_version": vbios_version(opaque)}
    claims |= {name: _text(opaque[kind]) for kind, name in _TEXTS.items() if kind in opaque}
    claims |= {name: opaque[kind].hex() for kind, name in _BYTES.items() if kind in opaque}
    return claims


def certified_fwid(leaf: x509.Certificate) -> bytes | None:
    """The digest of the firmware that holds this certificate's key (SHA-384), where the certificate names one."""
    for extension in leaf.extensions:
        if not isinstance(extension.value, x509.UnrecognizedExtension):
            continue
        value = extension.value.value
        if extension.oid == _DICE_DEVICE_ID and len(value) > 48:
            return value[-48:]
        if extension.oid == _DICE_TCB_INFO:
            found = _FIRST_FWID.search(value)
            return None if found is None else found[1]
    return None


def _text(value: bytes) -> str:
    text = value.split(b"\0", 1)[0]
    return text.decode("ascii") if text.isascii() and all(32 <= byte < 127 for byte in text) else text.hex()
