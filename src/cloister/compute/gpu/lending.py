"""Prompts' keys and values in memory that an attention process lends: its end, and a vault's.

The attention process makes an arena for each of its places before it is sealed. A vault computes its prompts into the
one it gets and writes there what is exposed; it maps no other, and no mailbox. The attention process answers for all of
them in one launch. It reads within a place's own arena, whatever is written there (link.cuh).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from cloister.compute.base import AttentionShape, CacheShape, LinkAnswerer, PromptHolder
from cloister.compute.gpu.answering import AnswerStream, Grid, Slots
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.exposure import ArenaShape
from cloister.compute.gpu.kernels import GpuDevice
from cloister.compute.gpu.mailbox import MailboxShape
from cloister.compute.gpu.memory import SharedMemory, reserved, whole

GROUPS = 4
"""Of a prompt at once; it is not known here how long prompts are."""


class LentCache(GpuCache):
    """A vault's cache in an arena, and what is exposed of it. Nothing is left of who had it before."""

    def __init__(self, shape: CacheShape, blocks: int, arena: int) -> None:
        block_bytes = shape.block_bytes(self.dtype)
        self.arena = ArenaShape(blocks, shape.dim, block_bytes)
        self._memory = SharedMemory.adopt(arena, self.arena.size)
        self._memory.wipe()
        data = self._memory.bytes
        self.exposed = data[: 4 * self.arena.words].view(torch.int32)
        super().__init__(shape, blocks, data[self.arena.header : self.arena.size])


class LentAnswerer(LinkAnswerer):
    """A vault's end: it says in its arena what is exposed, and others answer."""

    def __init__(self, model: AttentionShape, cache: LentCache) -> None:
        self._model, self._cache, self._is_exposed = model, cache, False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def start(self) -> None:
        self.expose(0, [0], start=0, end=1, rotation=0)
        self.withdraw(0)

    def fileno(self) -> int:
        return self._event

    @property
    def verdict(self) -> str:
        return ""

    def free_slot(self) -> int | None:
        return None if self._is_exposed else 0

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        if slot != self.free_slot():
            raise ValueError("the slot is taken or does not exist")
        words = self._cache.arena.written(blocks, start, end, self._model.rotation(rotation))
        self._cache.exposed.copy_(words)
        torch.cuda.current_stream().synchronize()
        self._is_exposed = True

    def withdraw(self, slot: int) -> None:
        self._is_exposed = False
        self._cache.exposed.zero_()
        torch.cuda.current_stream().synchronize()


class GpuHolder(PromptHolder):
    """An attention process's end, for the first `places` slots of a mailbox."""

    def __init__(
        self, device: GpuDevice, model: AttentionShape, blocks: int, places: int, mailbox: int, patience_ms: int
    ) -> None:
        shape = MailboxShape.of(model, places)
        self._mailbox = SharedMemory.adopt(mailbox, shape.size)
        self._mailbox.wipe()
        self._arena = ArenaShape(blocks, model.cache_shape.dim, model.cache_shape.block_bytes(GpuCache.dtype))
        stride = whole(self._arena.size)
        address = reserved(places * stride)
        self._arenas = [SharedMemory.create(self._arena.size, address + place * stride) for place in range(places)]
        self._grid: Grid = (places, GROUPS)
        slots = Slots(address, stride, address + self._arena.header, stride)
        device.kernels.suit(model.cache_shape.dim)
        self._stream = AnswerStream(
            device, model, self._mailbox, shape, slots, self._arena, patience_ms, lambda: self._grid
        )

    def export(self) -> list[int]:
        return [arena.export() for arena in self._arenas]

    def start(self) -> None:
        self._stream.record([self._grid])
        self.clear(0)
        self._stream.keep_launching()

    def fileno(self) -> int:
        return self._stream.fileno()

    def clear(self, place: int) -> None:
        """What is exposed goes first: nothing is answered from what is half wiped."""
        arena = self._arenas[place]
        arena.wipe(0, self._arena.header)
        arena.wipe()
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        self._stream.leave()
