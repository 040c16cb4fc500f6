"""The paged KV cache on a GPU: [block][layer][keys, values][kv head][16 · dim]; values in lanes' order (rows.cuh)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cloister.compute.base import CacheShape, KVCache
from cloister.compute.gpu.queries import MOST_COMPARED
from cloister.compute.layout import BLOCK_TOKENS

DTYPE = torch.bfloat16
COPIED = 32  # blocks at once


@dataclass(frozen=True, slots=True, repr=False)
class Hashing:
    """A vault's passes add up hashes of their first `rows` queries here (queries.py), recorded or not."""

    keys: torch.Tensor
    sums: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def by(cls, keys: torch.Tensor) -> "Hashing":
        sums = torch.zeros(MOST_COMPARED, 2, dtype=torch.int64, device=keys.device)
        return cls(keys, sums, torch.zeros(1, dtype=torch.int32, device=keys.device))

    def begin(self, rows: int) -> None:
        if rows > MOST_COMPARED:
            raise ValueError("a pass has more rows than can be compared")
        self.sums[:rows].zero_()
        self._say(rows)

    def end(self) -> None:
        self._say(0)

    def found(self, rows: int) -> list[list[int]]:
        halves: list[list[int]] = self.sums[:rows].cpu().tolist()
        return halves

    def _say(self, rows: int) -> None:
        self.rows.copy_(torch.tensor([rows], dtype=torch.int32))


class GpuCache(KVCache):
    """All of its memory is taken now: a GPU hands out no pages later."""

    dtype = DTYPE
    hashing: Hashing | None = None

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
