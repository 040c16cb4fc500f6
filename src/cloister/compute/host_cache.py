"""The paged KV cache on the host: 16 positions a block; keys [kv head][dim][16], values [kv head][16][dim]."""

import math
import mmap
from collections.abc import Sequence

import torch

from cloister.compute.base import CacheShape, KVCache
from cloister.compute.layout import BLOCK_TOKENS


class HostCache(KVCache):
    """A block's layers lie together, so that a cache that is little used takes few pages."""

    def __init__(self, shape: CacheShape, blocks: int, dtype: torch.dtype) -> None:
        self.shape = shape
        self.blocks = blocks
        self.dtype = dtype
        size = (blocks, shape.layers, shape.kv_heads)
        self._keys = untouched_zeros(*size, shape.dim, BLOCK_TOKENS, dtype=dtype)
        self._values = untouched_zeros(*size, BLOCK_TOKENS, shape.dim, dtype=dtype)
        self.bytes_per_layer = self._keys.stride(1) * dtype.itemsize  # from one layer's keys (or values) to the next's
        self.block = self._keys.stride(0)  # in values, from a layer's keys (or values) in one block to the next block's

    def wipe(self, blocks: Sequence[int], layers: int | None = None) -> None:
        """`layers`: the first ones; memory of the others is not touched."""
        for block in blocks:
            self._keys[block, :layers].zero_()
            self._values[block, :layers].zero_()

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self._keys[target].copy_(self._keys[source])
            self._values[target].copy_(self._values[source])

    def keys(self, layer: int) -> torch.Tensor:
        """[block, kv head, dim, 16]"""
        return self._keys[:, layer]

    def values(self, layer: int) -> torch.Tensor:
        """[block, kv head, 16, dim]"""
        return self._values[:, layer]


def on_host(cache: KVCache) -> HostCache:
    """Kernels on the host can read no other cache."""
    if not isinstance(cache, HostCache):
        raise ValueError("the cache is another device's")
    return cache


def untouched_zeros(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """By mmap, so that memory is taken when a page is written: our allocator writes zeros to all it gives out."""
    raw = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(raw, dtype=dtype).view(size)
