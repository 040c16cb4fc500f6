"""Prompts' keys and values in memory that an attention process lends: its end, and a vault's.

The attention process makes an arena for each of its places before it is sealed. A vault computes its prompts into the
one it gets and writes there what is exposed; it maps no other, and no mailbox. The attention process answers for all of
them in one launch. It reads within a place's own arena, whatever is written there (link.cuh).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from cloister.compute.base import AttentionHost, AttentionShape, CacheShape, LinkAnswerer
from cloister.compute.gpu.answering import AnswerStream, Blocks, Slots
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.device import GpuDevice
from cloister.compute.gpu.exposure import ArenaShape
from cloister.compute.gpu.mailbox import EXPOSED, MailboxShape, Seats
from cloister.compute.gpu.memory import SharedMemory, reserved, whole


class LentCache(GpuCache):
    """A vault's cache in an arena, and what is exposed of it. Nothing is left of who had it before."""

    def __init__(self, shape: CacheShape, blocks: int, arena: int, slots: int = EXPOSED) -> None:
        block_bytes = shape.block_bytes(self.dtype)
        self.arena = ArenaShape(blocks, shape.dim, block_bytes, slots)
        self._memory = SharedMemory.adopt(arena, self.arena.size)
        self._memory.wipe()
        data = self._memory.bytes
        self.exposed = data[: 4 * self.arena.words * slots].view(torch.int32).view(slots, self.arena.words)
        super().__init__(shape, blocks, data[self.arena.header : self.arena.size])


class LentAnswerer(LinkAnswerer):
    """A vault's end: it says in its arena what is exposed in each slot, and others answer."""

    def __init__(self, model: AttentionShape, cache: LentCache) -> None:
        self._model, self._cache, self.slots = model, cache, cache.arena.slots
        self._free = set(range(self.slots))
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
        return min(self._free, default=None)

    def expose(self, slot: int, blocks: Sequence[int], *, start: int, end: int, rotation: int) -> None:
        if slot not in self._free:
            raise ValueError("the slot is taken or does not exist")
        words = self._cache.arena.written(blocks, start, end, self._model.rotation(rotation))
        self._cache.exposed[slot].copy_(words)
        torch.cuda.current_stream().synchronize()
        self._free.remove(slot)

    def withdraw(self, slot: int) -> None:
        self._cache.exposed[slot].zero_()
        torch.cuda.current_stream().synchronize()
        self._free.add(slot)


class GpuHolder(AttentionHost):
    """An attention process's end, for vaults at so many places, each with the next slots of a mailbox."""

    def __init__(
        self,
        device: GpuDevice,
        model: AttentionShape,
        blocks: int,
        places: int,
        mailbox: int,
        patience_ms: int,
        seats: Seats,
    ) -> None:
        """One of several, whose mailboxes are alike, though some have a place less: a handle is mapped whole or not at
        all. It answers for its own places, whatever is asked."""
        slots = seats.each
        shape = MailboxShape.of(model, places * slots)
        self._mailbox = SharedMemory.adopt(mailbox, MailboxShape.of(model, seats.slots).size)
        self._mailbox.wipe()
        self._arena = ArenaShape(blocks, model.cache_shape.dim, model.cache_shape.block_bytes(GpuCache.dtype), slots)
        stride = whole(self._arena.size)
        address = reserved(places * stride)
        self._arenas = [SharedMemory.create(self._arena.size, address + place * stride) for place in range(places)]
        held = Slots(address, stride, address + self._arena.header, stride)
        device.kernels.suit(model.cache_shape.dim)
        blocks_here = Blocks.among(device.kernels.processors, seats.mailboxes)
        self._stream = AnswerStream(
            device, model, self._mailbox, shape, held, self._arena, patience_ms, blocks_here, lambda: True
        )

    def export(self) -> list[int]:
        return [arena.export() for arena in self._arenas]

    def start(self) -> None:
        self._stream.rehearse()
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
