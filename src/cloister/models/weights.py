"""A model's tensors by name, over one or several mapped safetensors files; and how such a file is read and written.

Reading maps the file and copies nothing; it needs only a file descriptor, so a sealed memory file will do as well.
Written without the `safetensors` package because that one wants all tensors in memory at once. Knows nothing of
architectures: names and shapes are the caller's affair, tied embeddings too.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch

from cloister.errors import ModelCorrupt, ModelNotFound
from cloister.models.source import ModelFolder

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
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


class Weights(Mapping[str, torch.Tensor]):
    """Read-only mapping from names to tensors. A tensor is a view of the mapped file: nothing is copied."""

    def __init__(self, shards: Mapping[str, Shard]) -> None:
        self._shards = dict(shards)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._shards[name].tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def __contains__(self, name: object) -> bool:
        return name in self._shards

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without making the tensor."""
        return self._shards[name].entries[name].shape


def open_weights(folder: ModelFolder) -> Weights:
    index = folder.path / INDEX_FILE
    if index.is_file():
        return Weights(_indexed_shards(index))
    single = folder.path / SINGLE_FILE
    if not single.is_file():
        raise ModelNotFound(
            f"{folder.path} holds neither {SINGLE_FILE} nor {INDEX_FILE}.",
            hint="Only safetensors are read: fetch that form of the model, or give a GGUF file.",
        )
    shard = Shard.open(single)
    return Weights(dict.fromkeys(shard.entries, shard))


def _indexed_shards(index: Path) -> dict[str, Shard]:
    try:
        places = dict(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as wrong:
        raise ModelCorrupt(f"{index} is not an index of safetensors files.", hint="Fetch the model again.") from wrong
    opened: dict[str, Shard] = {}
    shards: dict[str, Shard] = {}
    for name, file_name in places.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise ModelCorrupt(f"{index} points outside its own folder.", hint="Do not use this model.")
        path = index.parent / file_name
        if not path.is_file():
            raise ModelNotFound(f"{path} is named in the index but is not there.", hint="Fetch the model again.")
        shard = opened.get(file_name) or opened.setdefault(file_name, Shard.open(path))
        if name not in shard.entries:
            raise ModelCorrupt(f"{path} lacks the tensor {name}, which the index puts there.")
        shards[name] = shard
    return shards
