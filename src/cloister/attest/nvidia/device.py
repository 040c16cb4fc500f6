"""What a GPU is, by its report's opaque data and by its certificate: chip, versions, firmware. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cryptography import x509

from cloister.attest.nvidia.policy import Architecture

DRIVER_VERSION: Final = 3
VBIOS_VERSION: Final = 6
FWID: Final = 20
_TEXTS: Final = {15: "chip_sku", 16: "chip_sku_mod", 17: "project", 18: "project_sku", 19: "project_sku_mod"}
_BYTES: Final = {
    4: "gpu_info",
    13: "cpr_info",
    14: "board_id",
    11: "nvdec0_status",
    FWID: "fwid",
    21: "protected_pcie",
    33: "system_enable",
    34: "opaque_version",
    36: "features",
}

_CHIPS: Final[tuple[tuple[str, Architecture], ...]] = (("GH", "HOPPER"), ("GB", "BLACKWELL"), ("LS_10 ", "LS10"))

# TCG DICE: the composite device id of Hopper ends in its firmware's digest, TcbInfo of Blackwell lists digests.
_DICE_DEVICE_ID = x509.ObjectIdentifier("2.23.133.5.4.1")
_DICE_TCB_INFO = x509.ObjectIdentifier("2.23.133.5.4.1.1")
_FWIDS_TAG: Final = 0xA6
_SHA384_FWID: Final = bytes.fromhex("303d06096086480165030402020430")


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
    """The report's opaque data as claims."""
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
            return _first_fwid(value)
    return None


def _first_fwid(tcb_info: bytes) -> bytes | None:
    """The first digest of DiceTcbInfo's `fwids [6]`; None if it is not the SHA-384 that GPUs use."""
    at = 0
    tag, start, end = _element(tcb_info, at)
    if tag != 0x30 or end != len(tcb_info):
        return None
    at = start
    while 0 <= at < end:
        tag, start, at = _element(tcb_info, at)
        if tag == _FWIDS_TAG and tcb_info[start : start + len(_SHA384_FWID)] == _SHA384_FWID:
            digest = tcb_info[start + len(_SHA384_FWID) : start + len(_SHA384_FWID) + 48]
            return digest if len(digest) == 48 else None
    return None


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the DER element here; ends in -1 where there is none."""
    header = data[at : at + 4]
    if len(header) < 2:
        return 0, -1, -1
    if header[1] < 0x80:
        start, size = at + 2, header[1]
    elif header[1] == 0x81 and len(header) > 2:
        start, size = at + 3, header[2]
    elif header[1] == 0x82 and len(header) > 3:
        start, size = at + 4, int.from_bytes(header[2:4], "big")
    else:
        return 0, -1, -1
    return (header[0], start, start + size) if start + size <= len(data) else (0, -1, -1)


def _text(value: bytes) -> str:
    text = value.split(b"\0", 1)[0]
    return text.decode("ascii") if text.isascii() and all(32 <= byte < 127 for byte in text) else text.hex()
