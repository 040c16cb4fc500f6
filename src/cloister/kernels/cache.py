"""The storage of the paged KV cache: blocks of 16 positions, in each of them keys and values of every layer.

Keys of a block lie as [kv head][dim][16], values as [kv head][16][dim]: the order in which attention reads them.
Who owns which block is the pool's affair.
"""

from __future__ import annotations

import math
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
    """Keys and values of `blocks` blocks. A block's layers lie together, so that little used takes few pages."""

    def __init__(self, shape: CacheShape, blocks: int, dtype: torch.dtype) -> None:
        self.shape = shape
        self.blocks = blocks
        self.dtype = dtype
        size = (blocks, shape.layers, shape.kv_heads)
        self._keys = _zeros(*size, shape.dim, BLOCK_TOKENS, dtype=dtype)
        self._values = _zeros(*size, BLOCK_TOKENS, shape.dim, dtype=dtype)

    @property
    def bytes_per_layer(self) -> int:
        """How far one layer's keys (or values) lie from the next's."""
        return self._keys.stride(1) * self.dtype.itemsize

    @property
    def block(self) -> int:
        """How many values lie between a layer's keys (or values) in one block and in the next."""
        return self._keys.stride(0)

    def keys(self, layer: int) -> torch.Tensor:
        """[block, kv head, dim, 16]"""
        return self._keys[:, layer]

    def values(self, layer: int) -> torch.Tensor:
        """[block, kv head, 16, dim]"""
        return self._values[:, layer]


def _zeros(*size: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros that take memory only once a page is written: a large cache costs nothing at start."""
    raw = np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(size)
