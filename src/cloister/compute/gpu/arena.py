"""Arenas: memory of an attention process that one vault maps and computes its prompts into. One launch answers for all;
its kernel reads within an arena, whatever the vault wrote there (answer.cuh)."""

from collections.abc import Sequence

import torch

from cloister.compute.base import AttentionHost, AttentionShape, CacheShape, LinkAnswerer
from cloister.compute.gpu.answering import AnswerStream, Arenas, Blocks
from cloister.compute.gpu.cache import GpuCache
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.mailbox import EXPOSED, ArenaShape, MailboxShape, MailboxSlots
from cloister.compute.gpu.memory import SharedMemory, reserved, whole


class ArenaCache(GpuCache):
    """The arena is wiped first."""

    def __init__(self, shape: CacheShape, blocks: int, arena: int, slots: int = EXPOSED) -> None:
        self.arena = ArenaShape(blocks, shape.dim, shape.block_bytes(self.dtype), slots)
        self._memory = SharedMemory.adopt(arena, self.arena.size)
        self._memory.wipe()
        data = self._memory.bytes
        self.exposed = data[: 4 * self.arena.words * slots].view(torch.int32).view(slots, self.arena.words)
        super().__init__(shape, blocks, data[self.arena.header : self.arena.size])


class ArenaAnswerer(LinkAnswerer):
    """A vault's end: it writes into its arena what is exposed in each slot; an attention process answers."""

    def __init__(self, model: AttentionShape, cache: ArenaCache) -> None:
        super().__init__(cache.arena.slots)
        self._model, self._cache = model, cache

    def start(self) -> None:
        self.expose(0, [0], start=0, end=1, rotation=0)
        self.withdraw(0)

    def _write(self, slot: int, blocks: Sequence[int], start: int, end: int, rotation: int) -> None:
        words = self._cache.arena.written(blocks, start, end, self._model.rotation(rotation))
        self._cache.exposed[slot].copy_(words)
        torch.cuda.current_stream().synchronize()

    def _erase(self, slot: int) -> None:
        self._cache.exposed[slot].zero_()
        torch.cuda.current_stream().synchronize()


class GpuAttentionHost(AttentionHost):
    """An attention process's end: an arena for each of its `vaults`, and the mailbox through which it is asked."""

    def __init__(
        self,
        kernels: GpuKernels,
        model: AttentionShape,
        blocks: int,
        vaults: int,
        mailbox: int,
        patience_ms: int,
        slots: MailboxSlots,
    ) -> None:
        """All mailboxes have one size, though some processes have a vault less: a handle can only be mapped whole."""
        shape = MailboxShape.of(model, vaults * slots.each)
        self._mailbox = SharedMemory.adopt(mailbox, MailboxShape.of(model, slots.slots).size)
        self._mailbox.wipe()
        block_bytes = model.cache_shape.block_bytes(GpuCache.dtype)
        self._arena = ArenaShape(blocks, model.cache_shape.dim, block_bytes, slots.each)
        stride = whole(self._arena.size)
        address = reserved(vaults * stride)
        self._arenas = [SharedMemory.create(self._arena.size, address + vault * stride) for vault in range(vaults)]
        kernels.suit(model.cache_shape.dim)
        counts = Blocks.among(kernels.processors, slots.placement.attention_processes)
        arenas = Arenas(address, stride, self._arena)
        self._stream = AnswerStream(kernels, model, self._mailbox, shape, arenas, patience_ms, counts)

    def export(self) -> list[int]:
        return [arena.export() for arena in self._arenas]

    def start(self) -> None:
        self._stream.rehearse()
        self.clear(0)
        self._stream.keep_launching()

    def fileno(self) -> int:
        return self._stream.fileno()

    def clear(self, vault: int) -> None:
        """What is exposed goes first, so that no answer comes from a half-wiped prompt."""
        arena = self._arenas[vault]
        arena.wipe(0, self._arena.header)
        arena.wipe()
        torch.cuda.current_stream().synchronize()

    def leave(self) -> None:
        self._stream.leave()

    def close(self) -> None:
        """For a benchmark that goes on in the same process."""
        for memory in (*self._arenas, self._mailbox):
            memory.close()
