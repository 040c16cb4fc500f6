"""Arenas: memory of an attention process that one vault maps and computes its prompts into. One launch answers for all;
its kernel reads within an arena, whatever the vault wrote there (answer.cuh)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import sleep

import torch

from cloister.compute.base import AttentionHost, AttentionShape, CacheShape, LinkAnswerer
from cloister.compute.gpu.answering import AnswerStream, Arenas, Blocks
from cloister.compute.gpu.cache import GpuCache, Hashing
from cloister.compute.gpu.kernels import GpuKernels
from cloister.compute.gpu.mailbox import EXPOSED, ArenaShape, MailboxShape, MailboxSlots
from cloister.compute.gpu.memory import SharedMemory, reserved, whole
from cloister.compute.gpu.queries import ENTRY, RECORDED, Keys, Record, asked_in, joined

SETTLE_S, SETTLING = 0.02, 25  # how often, and how long apart, other queries are looked at again before they are so


class ArenaCache(GpuCache):
    """The arena is wiped first."""

    hashing: Hashing

    def __init__(self, shape: CacheShape, blocks: int, arena: int, slots: int = EXPOSED) -> None:
        held = self.arena = ArenaShape(blocks, shape, shape.block_bytes(self.dtype), slots)
        self._memory = SharedMemory.adopt(arena, held.size)
        self._memory.wipe()
        data = self._memory.bytes
        self.exposed = data[: 4 * held.words * slots].view(torch.int32).view(slots, held.words)
        self.hashing = Hashing.by(data[held.keys_at : held.records_at].view(torch.int64))
        entries = (slots, RECORDED + 1, ENTRY)
        end = held.records_at + 8 * slots * (RECORDED + 1) * ENTRY
        self.records = data[held.records_at : end].view(torch.int64).view(entries)
        super().__init__(shape, blocks, data[held.header : held.size])


class ArenaAnswerer(LinkAnswerer):
    """A vault's end: it writes into its arena what is exposed in each slot; an attention process answers, and records
    what it was asked (queries.py)."""

    recorded = RECORDED

    def __init__(self, model: AttentionShape, cache: ArenaCache) -> None:
        super().__init__(cache.arena.slots)
        self._model, self._cache, self._hashing = model, cache, cache.hashing
        self._keys = Keys(cache.arena.keys)
        self._records: dict[int, Record] = {}

    def start(self) -> None:
        """With all that comparing takes, once: a sealed process loads nothing."""
        self._hashing.keys.copy_(self._keys.words)
        self.expose(0, [0], start=0, end=1, rotation=0)
        with self.comparing([(0, 0)]):
            self._hashing.found(1)
        self._others({0})
        self.withdraw(0)

    def _write(self, slot: int, blocks: Sequence[int], start: int, end: int, rotation: int) -> None:
        words = self._cache.arena.written(blocks, start, end, self._model.rotation(rotation))
        self._records[slot] = Record(self._keys.factors(end - start))
        self._cache.records[slot].zero_()
        self._cache.exposed[slot].copy_(words)
        torch.cuda.current_stream().synchronize()

    def _erase(self, slot: int) -> None:
        self._cache.exposed[slot].zero_()
        del self._records[slot]
        torch.cuda.current_stream().synchronize()

    def asked(self, slot: int) -> int:
        return asked_in(self._cache.records[slot].cpu())

    @contextmanager
    def comparing(self, rows: Sequence[tuple[int, int]]) -> Iterator[Callable[[], bool]]:
        self._hashing.begin(len(rows))
        try:
            yield lambda: self._same(rows)
        finally:
            self._hashing.end()

    def _same(self, rows: Sequence[tuple[int, int]]) -> bool:
        """An index may be asked again at this moment, and the last one may be recorded a moment after it was answered:
        others are those that stay so."""
        for (slot, index), halves in zip(rows, self._hashing.found(len(rows)), strict=True):
            if index < RECORDED:
                self._records[slot].own[index] = joined(halves)
        others = self._others({slot for slot, _ in rows})
        for _ in range(SETTLING):
            if not others:
                break
            sleep(SETTLE_S)
            others &= self._others({slot for slot, _ in others})
        return not others

    def _others(self, slots: set[int]) -> set[tuple[int, int]]:
        entries = {slot: self._cache.records[slot].cpu() for slot in slots}
        differing = {slot: self._records[slot].differing(self._keys, entries[slot]) for slot in slots}
        return {(slot, index) for slot, indices in differing.items() for index in indices}


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
        self._arena = ArenaShape(blocks, model.cache_shape, block_bytes, slots.each)
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
