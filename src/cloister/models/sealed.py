"""Parts in a sealed memory file: packed once, mapped read-only. Header (64 bytes: magic, version, index's place, length
and SHA-256), tensors, index (JSON). It belongs to one kind of kernels and one start of the server."""

import ctypes
import hashlib
import mmap
import os
import struct
import weakref
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from cloister.compute.base import Kernels
from cloister.compute.layer import Gate, Packed
from cloister.errors import ModelCorrupt, SetupError
from cloister.models.decoder import Parts, lacking
from cloister.models.memory_file import ReadOnlyMapping, check_sealed
from cloister.models.weights import DTYPE_NAMES, DTYPES

MAGIC = b"CLOISTER"
VERSION = 1
HEADER = struct.Struct("<8sIIQQ32s")
ALIGNMENT = 64
PAGE = mmap.PAGESIZE
MAX_INDEX_BYTES = 64 * 1024 * 1024

_Size = Annotated[int, Meta(ge=0, le=2**48)]


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The offset counts from the file's first byte."""

    dtype: str
    shape: tuple[_Size, ...]
    offset: _Size

    @property
    def bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


class Product(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    data: Entry
    columns: _Size
    k: _Size
    bias: Entry | None = None
    gate: Gate | None = None
    scale: Entry | None = None


class Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    layout: str
    tensors: dict[str, Entry]
    products: dict[str, Product]


def layout_of(kernels: Kernels) -> str:
    """Kernels of the same layout can use each other's packed weights."""
    return f"{kernels.name}/{DTYPE_NAMES[kernels.dtype]}"


class PartsWriter(Parts):
    """Writes the parts that a decoder asks for to a file; the decoder gets shapes without content, so no part stays."""

    def __init__(self, source: Parts, kernels: Kernels, fd: int) -> None:
        self._source = source
        self._fd = fd
        self._end = HEADER.size
        self._index = Index(layout_of(kernels), {}, {})

    def names(self) -> set[str]:
        return self._source.names()

    def tensor(self, name: str) -> torch.Tensor:
        found = self._source.tensor(name)
        if name not in self._index.tensors:
            self._index.tensors[name] = self._write(found)
        return found.to("meta")

    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        packed, key = self._source.product(weights, biases, gate), _key(weights, biases)
        known = self._index.products.get(key)
        if known is None:
            bias, scale = (None if each is None else self._write(each) for each in (packed.bias, packed.scale))
            known = Product(self._write(packed.data), packed.columns, packed.k, bias, packed.gate, scale)
            self._index.products[key] = known
        elif known.gate != packed.gate:
            raise ValueError("the same layers are asked for with a gate and without")
        return replace(packed, data=packed.data.to("meta"), bias=_shape(packed.bias), scale=_shape(packed.scale))

    def leftover(self) -> set[str]:
        return self._source.leftover()

    def finish(self) -> int:
        """Returns the file's length."""
        index = msgspec.json.encode(self._index)
        start, length = self._end, len(index)
        self._put(index, start)
        os.ftruncate(self._fd, -(-(start + length) // PAGE) * PAGE)
        # Last: a file abandoned half-way has no magic.
        self._put(HEADER.pack(MAGIC, VERSION, 0, start, length, hashlib.sha256(index).digest()), 0)
        return os.fstat(self._fd).st_size

    def _write(self, tensor: torch.Tensor) -> Entry:
        content = tensor.detach().contiguous().flatten().view(torch.uint8).numpy()
        alignment = PAGE if content.nbytes >= PAGE else ALIGNMENT
        start = -(-self._end // alignment) * alignment
        self._put(content.data, start)
        self._end = start + content.nbytes
        return Entry(DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), start)

    def _put(self, content: memoryview | bytes, offset: int) -> None:
        rest = memoryview(content)
        while rest:  # one call writes 2 GiB at most
            written = os.pwrite(self._fd, rest, offset)
            rest, offset = rest[written:], offset + written


class SealedParts(Parts):
    """Parts as views of a sealed file. The descriptor may be closed: the mapping does not need it."""

    def __init__(self, fd: int, kernels: Kernels) -> None:
        check_sealed(fd)
        self.bytes = os.fstat(fd).st_size
        self._index = _read_index(fd, self.bytes)
        if self._index.layout != layout_of(kernels):
            message = f"The weights are packed for {self._index.layout}, and these kernels are {layout_of(kernels)}."
            hint = "Start the server again: every process must choose the same kernels."
            raise SetupError(message, hint=hint)
        try:
            mapping = ReadOnlyMapping(fd, self.bytes)
        except OSError as failure:
            raise SetupError(f"The weights cannot be mapped: {os.strerror(failure.errno or 0)}.") from failure
        memory = (ctypes.c_ubyte * self.bytes).from_address(mapping.address)
        weakref.finalize(memory, mapping.close).atexit = False  # unmapped when the last view is gone
        self.file = torch.frombuffer(memory, dtype=torch.uint8)
        self._names = {*self._index.tensors, *(name for key in self._index.products for name in key.split())}
        self._asked: set[str] = set()

    def names(self) -> set[str]:
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        entry = self._index.tensors.get(name)
        if entry is None:
            raise lacking(name)
        self._asked.add(name)
        return self._view(entry)

    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        key = _key(weights, biases)
        found = self._index.products.get(key)
        if found is None or found.gate != gate:
            raise lacking(key)
        self._asked.add(key)
        bias, scale = (None if each is None else self._view(each) for each in (found.bias, found.scale))
        return Packed(self._view(found.data), found.columns, found.k, bias, found.gate, scale)

    def leftover(self) -> set[str]:
        return (set(self._index.tensors) | set(self._index.products)) - self._asked

    def _view(self, entry: Entry) -> torch.Tensor:
        flat = self.file[entry.offset : entry.offset + entry.bytes]
        return flat.view(DTYPES[entry.dtype]).view(entry.shape)


def _shape(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.to("meta")


def _key(weights: Sequence[str], biases: Sequence[str]) -> str:
    return " ".join((*weights, *biases))


def _read_index(fd: int, size: int) -> Index:
    start = os.pread(fd, HEADER.size, 0)
    if len(start) < HEADER.size:
        raise _corrupt("it is too short")
    magic, version, reserved, offset, length, digest = HEADER.unpack(start)
    if (magic, version, reserved) != (MAGIC, VERSION, 0):
        raise _corrupt("it was not written whole, or by another version")
    if length > MAX_INDEX_BYTES or offset < HEADER.size or offset + length > size:
        raise _corrupt("its index lies outside")
    encoded = os.pread(fd, length, offset)
    if hashlib.sha256(encoded).digest() != digest:
        raise _corrupt("its index has changed")
    try:
        index = msgspec.json.decode(encoded, type=Index)
    except msgspec.MsgspecError as wrong:
        raise _corrupt("its index does not decode") from wrong
    for entry in index.tensors.values():
        _check_entry(entry, offset)
    for product in index.products.values():
        floats = [part for part in (product.bias, product.scale) if part is not None]
        for part in (product.data, *floats):
            _check_entry(part, offset)
        # Layouts pad: a packed weight may be larger than its matrix, never smaller.
        short = any(part.dtype != "F32" or prod(part.shape) < product.columns for part in floats)
        if short or prod(product.data.shape) < product.columns * product.k:
            raise _corrupt("a product is smaller than it says")
    return index


def _check_entry(entry: Entry, end: int) -> None:
    if entry.dtype not in DTYPES:
        raise _corrupt("it holds a tensor of an unknown type")
    if entry.offset < HEADER.size or entry.offset % ALIGNMENT or entry.offset + entry.bytes > end:
        raise _corrupt("a tensor lies outside")


def _corrupt(why: str) -> ModelCorrupt:
    return ModelCorrupt(f"The sealed weights cannot be used: {why}.", hint="Start the server again.")
