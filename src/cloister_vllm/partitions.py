"""Attention of answers whose prompts are in vaults, with our kernels: over the answer's own keys, which lie in our
cache under vLLM's block numbers, merged with what the vault finds. vLLM's kernel has no log-sum-exp to merge by."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from cloister.compute.base import CacheShape, Step
from cloister.compute.cpu.link import CpuAsker
from cloister.compute.cpu.native import NativeKernels
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import BLOCK_TOKENS, Chunk, Layout, Remote, lay_out
from cloister.link.memory import LinkShape


class Rows(NamedTuple):
    """Of one request in one step: its first row, how many, tokens before them, and its blocks as vLLM numbers them."""

    number: int
    first: int
    rows: int
    before: int
    blocks: list[int]


@dataclass(frozen=True, slots=True, repr=False)
class Asking:
    """The rows of a step that ask vaults, and whether it has no others."""

    places: torch.Tensor
    step: Step
    whole: bool


class Partitions:
    """One step at a time. `blocks` of `block_tokens` are as many as vLLM's."""

    def __init__(
        self, shape: CacheShape, heads: int, blocks: int, block_tokens: int, kernels: NativeKernels, patience_ms: int
    ) -> None:
        if block_tokens % BLOCK_TOKENS:
            raise ValueError("vLLM's block is not several of our own")
        self._kernels, self._group = kernels, heads // shape.kv_heads
        self.block_tokens, self._parts = block_tokens, block_tokens // BLOCK_TOKENS
        self._cache = HostCache(shape, blocks * self._parts, kernels.dtype)  # takes memory as it is written
        self.asker = CpuAsker(LinkShape(heads, shape.dim, shape.layers), patience_ms)
        self._remotes: dict[int, Remote] = {}
        self._held: dict[int, list[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._remotes)

    def __contains__(self, number: int) -> bool:
        return number in self._remotes

    def expect(self, number: int, remote: Remote) -> None:
        self._remotes[number] = remote

    def forget(self, number: int) -> None:
        """Before vLLM gives its blocks to another."""
        if self._remotes.pop(number, None) is not None:
            self._cache.wipe(self._held.pop(number, []))
            self._kernels.forget()

    def begin(self, requests: Iterable[Rows], total: int) -> Asking | None:
        """`total`: rows of the step. None if no request has its prompt in a vault."""
        chunks: list[Chunk] = []
        places: list[int] = []
        for number, first, count, before, blocks in requests:
            if (remote := self._remotes.get(number)) is None:
                continue
            mine = [block * self._parts + part for block in blocks for part in range(self._parts)]
            self._held[number] = mine
            chunks.append(Chunk([0] * count, before, mine, Layout(prompt=0, remote=remote)))
            places += range(first, first + count)
        if not chunks:
            return None
        batch = lay_out(chunks, self._group)
        step = Step(batch, self._cache, asker=self.asker)
        return Asking(torch.tensor(places), step, whole=len(places) == total)

    def attend(
        self, asking: Asking, layer: int, states: tuple[torch.Tensor, ...], out: torch.Tensor, scale: float, window: int
    ) -> None:
        """`states`: queries, keys and values of the step's rows; of `out` the rows that ask are written."""
        query, key, value = (each if asking.whole else each[asking.places] for each in states)
        rows = len(asking.places)
        batch, cache = asking.step.batch, self._cache
        self._kernels.store(key[:rows], value[:rows], layer, batch, cache)
        found = self._kernels.attention(query[:rows], layer, asking.step, scale, window)
        out[asking.places] = found.view(rows, *out.shape[1:]).to(out.dtype)
