"""Firmware of our own making: pages of a pattern, and at the end the tables that edk2's OVMF has."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from uuid import UUID

FOOTER = "96b582de-1fb2-45f7-baea-a366c55a082d"
RESET = "00f771de-1a7e-4fcb-890e-68c77e2fb44e"
HASHES = "7255371f-3a3b-4b04-927b-1da6efa8d454"
SEV = "dc886566-984a-4798-a75e-5585a7bf67cc"
TDX = "e47a6535-984a-4798-865e-4685a7bf8ec2"

AMD_SEV = (
    *((0x800000, 0x9000, 1), (0x80A000, 0x3000, 1), (0x80D000, 0x1000, 2), (0x80E000, 0x1000, 3)),
    *((0x80F000, 0x1000, 4), (0x810000, 0x1000, 0x10), (0x811000, 0xF000, 1)),
)
"""What edk2-stable202405's AmdSevX64 asks for: address, size, kind."""
OVMF_X64 = (*AMD_SEV[:5], (0x810000, 0x10000, 1))
"""And its OvmfPkgX64, which compares no kernel."""


def entry(guid: str, data: bytes) -> bytes:
    return data + struct.pack("<H", len(data) + 18) + UUID(guid).bytes_le


def firmware(
    snp: Sequence[tuple[int, int, int]] = AMD_SEV,
    tdx: Sequence[tuple[int, int, int, int, int, int]] = (),
    *,
    pages: int = 4,
    hashes: int = 0x810C00,
    reset: int = 0x80B004,
) -> bytes:
    size = pages * 4096
    sev = struct.pack("<4sIII", b"ASEV", 16 + 12 * len(snp), 1, len(snp))
    sev += b"".join(struct.pack("<III", *each) for each in snp)
    tdvf = struct.pack("<4sIII", b"TDVF", 16 + 32 * len(tdx), 1, len(tdx))
    tdvf += b"".join(struct.pack("<IIQQII", *each) for each in tdx)
    offsets = entry(SEV, struct.pack("<I", 1364)) + entry(TDX, struct.pack("<I", 2512))
    table = offsets + entry(HASHES, struct.pack("<II", hashes, 0x400)) + entry(RESET, struct.pack("<I", reset))
    made = bytearray(bytes(range(256)) * (size // 256))
    made[size - 1364 : size - 1364 + len(sev)] = sev
    made[size - 2512 : size - 2512 + len(tdvf)] = tdvf
    end = table + struct.pack("<H", len(table) + 18) + UUID(FOOTER).bytes_le
    made[size - 32 - len(end) : size - 32] = end
    return bytes(made)
