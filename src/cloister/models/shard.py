"""The safetensors file format, read and written: one header of names, then the tensors' bytes.

Reading maps the file and copies nothing; it needs only a file descriptor, so a sealed memory file will do as well.
Written without the `safetensors` package because that one wants all tensors in memory at once.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from cloister.errors import ModelCorrupt

MAX_HEADER_BYTES = 100 * 1024 * 1024
_LENGTH = struct.Struct("<Q")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where one tensor lies; `start` counts from the file's first byte."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize


class Shard:
    """One mapped safetensors file. The tensors share its pages: none is read before it is used."""

    def __init__(self, file: BinaryIO, label: str) -> None:
        self.entries = _read_entries(file, label)
        # ACCESS_COPY: pages stay shared until written, and torch insists on memory it might write.
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    @classmethod
    def open(cls, path: Path) -> Shard:
        with path.open("rb") as file:
            return cls(file, str(path))

    def tensor(self, name: str) -> torch.Tensor:
        entry = self.entries[name]
        if entry.count == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        flat = torch.frombuffer(self._map, dtype=entry.dtype, count=entry.count, offset=entry.start)
        return flat.reshape(entry.shape)


class ShardWriter:
    """Writes tensors in any order, one at a time, into a file laid out beforehand."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        header, starts, start = {}, {}, 0
        for name, shape in shapes.items():
            end = start + prod(shape) * dtype.itemsize
            header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
            starts[name] = start
            start = end
        encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._data_start = _LENGTH.size + len(encoded)
        self._starts = starts
        self._dtype = dtype
        self.missing = set(shapes)
        self._file = path.open("wb")
        self._file.write(_LENGTH.pack(len(encoded)) + encoded)
        self._file.truncate(self._data_start + start)

    def write(self, name: str, tensor: torch.Tensor) -> None:
        data = tensor.to(self._dtype).contiguous().flatten().view(torch.uint8).numpy()
        self._file.seek(self._data_start + self._starts[name])
        self._file.write(data.data)
        self.missing.discard(name)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _read_entries(file: BinaryIO, label: str) -> dict[str, Entry]:
    size = os.fstat(file.fileno()).st_size
    start = file.read(_LENGTH.size)
    if len(start) < _LENGTH.size:
        raise _corrupt(label, "it is too short to be a safetensors file")
    (length,) = _LENGTH.unpack(start)
    if length > min(MAX_HEADER_BYTES, size - _LENGTH.size):
        raise _corrupt(label, "its header is cut off or is not a safetensors header")
    try:
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = {name: _entry(described, _LENGTH.size + length, size) for name, described in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise _corrupt(label, "its header does not describe tensors that fit the file") from wrong
    return entries


def _entry(described: dict[str, Any], data_start: int, size: int) -> Entry:
    dtype, shape = _DTYPES[described["dtype"]], described["shape"]
    start, end = described["data_offsets"]
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, start, end)):
        raise ValueError("negative or not a number")
    entry = Entry(dtype, tuple(shape), data_start + start)
    if end - start != entry.bytes or data_start + end > size:
        raise ValueError("does not fit")
    return entry


def _corrupt(label: str, why: str) -> ModelCorrupt:
    return ModelCorrupt(f"{label} cannot be read: {why}.", hint="Fetch or convert the model again.")
