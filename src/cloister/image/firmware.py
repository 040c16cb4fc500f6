"""OVMF and the table that ends 32 bytes before its end (edk2 ResetVector), read backwards: data, length, GUID."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from cloister.errors import SetupError

PAGE = 4096
MAX_FIRMWARE_BYTES = 64 << 20
FOUR_GIB = 1 << 32
_AFTER_THE_TABLE = 32
_HEAD = 18
_FOOTER = "96b582de-1fb2-45f7-baea-a366c55a082d"
_SEV_RESET = "00f771de-1a7e-4fcb-890e-68c77e2fb44e"
_SEV_HASHES = "7255371f-3a3b-4b04-927b-1da6efa8d454"
_SEV_METADATA = "dc886566-984a-4798-a75e-5585a7bf67cc"
_TDX_METADATA = "e47a6535-984a-4798-865e-4685a7bf8ec2"


@dataclass(frozen=True)
class SnpSection:
    address: int
    size: int
    kind: int


@dataclass(frozen=True)
class TdxSection:
    """Memory that the host prepares for a TD (Intel, TDX Virtual Firmware Design Guide, §11.2)."""

    offset: int
    raw_size: int
    address: int
    size: int
    kind: int
    attributes: int


class Firmware:
    def __init__(self, data: bytes) -> None:
        if not data or len(data) % PAGE or len(data) > MAX_FIRMWARE_BYTES:
            raise SetupError("A firmware is a whole number of pages.", hint="Name an OVMF file, such as OVMF.fd.")
        self.data = data
        self.address = FOUR_GIB - len(data)
        self._table = _read_table(data)

    @property
    def reset_address(self) -> int:
        """Where processors other than the first begin (SEV-ES)."""
        return self._number(_SEV_RESET)

    @property
    def hashes_address(self) -> int:
        """Where the hashes of kernel, initrd and command line go; 0 where this firmware compares none."""
        return self._number(_SEV_HASHES) if _SEV_HASHES in self._table else 0

    @cached_property
    def snp_sections(self) -> tuple[SnpSection, ...]:
        count, rest = self._metadata(_SEV_METADATA, b"ASEV")
        return tuple(SnpSection(*each) for each in _records("<III", rest, count))

    @cached_property
    def tdx_sections(self) -> tuple[TdxSection, ...]:
        count, rest = self._metadata(_TDX_METADATA, b"TDVF")
        sections = tuple(TdxSection(*each) for each in _records("<IIQQII", rest, count))
        for each in sections:
            whole = not each.address % PAGE and not each.size % PAGE and each.raw_size <= each.size <= FOUR_GIB
            if not whole or each.offset + each.raw_size > len(self.data):
                raise _damaged()
        return sections

    def _number(self, guid: str) -> int:
        return int.from_bytes(self._entry(guid)[:4], "little")

    def _entry(self, guid: str) -> bytes:
        if len(entry := self._table.get(guid, b"")) < 4:
            raise SetupError("This firmware was not made for this kind of machine.", hint="Another build of OVMF is.")
        return entry

    def _metadata(self, guid: str, signature: bytes) -> tuple[int, bytes]:
        start = len(self.data) - self._number(guid)
        found, _, version, count = next(_records("<4sIII", self.data[max(start, 0) :], 1))
        if start < 0 or found != signature or version != 1 or count > 256:
            raise _damaged()
        return count, self.data[start + 16 :]


def _read_table(data: bytes) -> dict[str, bytes]:
    end = len(data) - _AFTER_THE_TABLE
    size, guid = _head(data[:end])
    if guid != _FOOTER or not _HEAD <= size <= end:
        raise SetupError("This firmware has no table at its end.", hint="Name an OVMF file, such as OVMF.fd.")
    table, rest = {}, data[end - size : end - _HEAD]
    while rest:
        size, guid = _head(rest)
        if not _HEAD <= size <= len(rest):
            raise _damaged()
        table[guid] = rest[-size:-_HEAD]
        rest = rest[:-size]
    return table


def _head(data: bytes) -> tuple[int, str]:
    if len(data) < _HEAD:
        raise _damaged()
    return int.from_bytes(data[-_HEAD:-16], "little"), str(UUID(bytes_le=data[-16:]))


def _records(form: str, data: bytes, count: int) -> Iterator[tuple[Any, ...]]:
    size = struct.calcsize(form)
    if len(data) < size * count:
        raise _damaged()
    return struct.iter_unpack(form, data[: size * count])


def _damaged() -> SetupError:
    return SetupError("The firmware's tables contradict themselves.", hint="Build or fetch it again.")
