"""The storage of the paged KV cache: for every layer, blocks of 16 positions of keys and values.

Keys of a block lie as [kv head][dim][16], values as [kv head][16][dim]: the order in which attention reads them.
Who owns which block is the pool's affair.
"""

from __future__ import annotations

import math
import mmap
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from cloister.kernels.batch import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one position costs: layers × KV heads × dim, for keys and for values."""

    layers: int
    kv_heads: int
    dim: int

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one block over all layers."""
        return 2 * self.layers * self.kv_heads * self.dim * BLOCK_TOKENS * dtype.itemsize


class KVCache:
    """Keys and values of `blocks` blocks, per layer."""

    def __init__(self, shape: CacheShape, blocks: int, dtype: torch.dtype, *, small_pages: bool = False) -> None:
        self.shape = shape
        self.blocks = blocks
        self.dtype = dtype
        size = (shape.layers, blocks, shape.kv_heads)
        self._keys = _zeros(*size, shape.dim, BLOCK_TOKENS, dtype=dtype, small_pages=small_pages)
        self._values = _zeros(*size, BLOCK_TOKENS, shape.dim, dtype=dtype, small_pages=small_pages)

    @property
    def bytes_per_layer(self) -> int:
        """How far one layer's keys (or values) lie from the next's."""
        return self._keys.stride(0) * self.dtype.itemsize

    def keys(self, layer: int) -> torch.Tensor:
        """[block, kv head, dim, 16]"""
        return self._keys[layer]

    def values(self, layer: int) -> torch.Tensor:
        """[block, kv head, 16, dim]"""
        return self._values[layer]


def _zeros(*size: int, dtype: torch.dtype, small_pages: bool) -> torch.Tensor:
    """Zeros that take memory only once a page is written: a large cache costs nothing at start.

    numpy asks for pages of 2 MiB, good for one cache that is full. With `small_pages` a cache of which little is used
    takes little: one block of it lies in as many places as there are layers.
    """
    count = math.prod(size) * dtype.itemsize
    if not small_pages:
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(size)
    memory = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages needs no such advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
