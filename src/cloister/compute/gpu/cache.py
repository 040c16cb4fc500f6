"""The paged KV cache on a GPU: [block][layer][keys, values][kv head][16 · dim]; values in lanes' order (rows.cuh)."""

from collections.abc import Sequence

import torch

from cloister.compute.base import CacheShape, KVCache
from cloister.compute.layout import BLOCK_TOKENS

DTYPE = torch.bfloat16
COPIED = 32  # blocks at once


class GpuCache(KVCache):
    """All of its memory is taken now: a GPU hands out no pages later."""

    dtype = DTYPE

    def __init__(self, shape: CacheShape, blocks: int, memory: torch.Tensor | None = None) -> None:
        self.shape, self.blocks = shape, blocks
        size = (blocks, shape.layers, 2, shape.kv_heads, BLOCK_TOKENS * shape.dim)
        self._held = torch.zeros(size, dtype=DTYPE, device="cuda") if memory is None else memory.view(DTYPE).view(size)

    def wipe(self, blocks: Sequence[int]) -> None:
        self._held[torch.tensor(blocks, dtype=torch.int64, device="cuda")] = 0

    def copy(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Some at a time: what is copied is held twice meanwhile, and a sealed process gets little memory."""
        places = torch.tensor([list(sources), list(targets)], dtype=torch.int64, device="cuda")
        for first in range(0, places.shape[1], COPIED):
            source, target = places[:, first : first + COPIED]
            self._held[target] = self._held[source]

    @property
    def block_stride(self) -> int:
        return self._held.stride(0)

    def layer(self, index: int) -> torch.Tensor:
        """[block, keys or values, kv head, 16 · dim]"""
        return self._held[:, index]


def on_gpu(cache: KVCache) -> GpuCache:
    if not isinstance(cache, GpuCache):
        raise ValueError("the cache is another device's")
    return cache
