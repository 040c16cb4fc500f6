"""Handles on attention processes, which live as long as the service that has their mailboxes (placement.py)."""

import asyncio
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping

import msgspec

from cloister.controller.forkserver import ForkServer
from cloister.controller.service import Service
from cloister.errors import ProtocolError, ServiceUnavailable
from cloister.messages.controller_attention import AttentionReady, ClearSlot, FromAttention, SlotCleared
from cloister.messages.controller_service import LinkSlot
from cloister.placement import Placement
from cloister.process.child import Child
from cloister.process.handle import Handle


class LinkSlots:
    """`end` calls back when the vault is gone. Slots a multiple of `groups` apart have one attention process."""

    def __init__(
        self,
        descriptors: Mapping[int, int],
        end: Callable[[Child, int, Callable[[], None]], None],
        groups: int = 1,
        weights: int | None = None,
    ) -> None:
        self._descriptors, self.weights = descriptors, weights
        self._groups, self._taken = groups, Counter[int]()
        self._free = deque(descriptors)
        self._end = end
        self.on_free: Callable[[], None] = lambda: None  # called when one more slot is free

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        if not self._free:
            raise ServiceUnavailable("There is no room for another vault.", hint="Try again in a few seconds.")
        slot = min(self._free, key=lambda free: self._taken[free % self._groups])
        self._free.remove(slot)
        self._taken[slot % self._groups] += 1
        return slot

    def descriptors(self, slot: int) -> tuple[int, int]:
        """For both directions of a link."""
        return self._descriptors[slot], self._descriptors[slot]

    def release(self, slot: int, vault: Child) -> None:
        self._end(vault, slot, lambda: self._freed(slot))

    def _freed(self, slot: int) -> None:
        self._free.append(slot)
        self._taken[slot % self._groups] -= 1
        self.on_free()


End = Callable[[Child, Callable[[], None]], None]  # ends a process, and says when it has ended


class Attention:
    def __init__(self, forkserver: ForkServer, mailbox: int, slots: int, end: End, on_end: Callable[[], None]) -> None:
        self._slots, self._end, self._on_end = slots, end, on_end
        self.memory: dict[int, int] = {}  # descriptors of its vaults' memory, by its own numbers
        self._clearing: dict[int, Callable[[], None]] = {}
        self._open = True
        self._child, ours = forkserver.spawn("attention", mailbox, slots=slots)
        name, handle, ended = "attention process", self._receive, self._ended
        self._handle = Handle(name, self._child, ours, FromAttention, AttentionReady, handle=handle, on_end=ended)

    async def ready(self) -> None:
        await self._handle.ready
        if set(self.memory) != set(range(self._slots)):
            raise ProtocolError("An attention process has less memory than agreed.")

    def clear(self, slot: int, then: Callable[[], None]) -> None:
        """`then` runs when nothing is left of the vault there; it does not run if this process ends before."""
        if self._open:
            self._clearing[slot] = then
            self._handle.send(ClearSlot(slot))

    def close(self) -> None:
        """MPS ends it: a signal while its kernel runs would end all clients."""
        if self._open:
            self._open = False
            self._handle.endpoint.close()
            self._end(self._child, lambda: None)
            self._clearing.clear()
            while self.memory:
                os.close(self.memory.popitem()[1])

    def _receive(self, message: msgspec.Struct) -> None:
        if isinstance(message, LinkSlot):
            descriptor = self._handle.endpoint.take_descriptor()
            if self._handle.started or message.slot in self.memory:
                os.close(descriptor)
                raise ProtocolError("An attention process sent a message out of turn.")
            self.memory[message.slot] = descriptor
        elif isinstance(message, SlotCleared) and message.slot in self._clearing:
            self._clearing.pop(message.slot)()
        else:
            raise ProtocolError("An attention process sent a message out of turn.")

    def _ended(self) -> None:
        started = self._handle.started
        self.close()
        if started:
            self._on_end()


class AttentionProcesses:
    def __init__(
        self, forkserver: ForkServer, service: Service, placement: Placement, end: End, on_end: Callable[[], None]
    ) -> None:
        self._end, self._placement, self._weights = end, placement, service.weights
        if len(service.slots) != placement.attention_processes:
            raise ProtocolError("The service made another number of mailboxes than agreed.")
        self._all = [
            Attention(forkserver, service.slots[number], len(placement.slots_of(number)), end, on_end)
            for number in sorted(service.slots)
        ]

    async def ready(self, patience_s: float) -> None:
        try:
            async with asyncio.timeout(patience_s):
                for process in self._all:
                    await process.ready()
        except TimeoutError:
            raise ServiceUnavailable("The attention processes do not start in time.") from None

    @property
    def memory(self) -> dict[int, int]:
        found = {}
        for slot in range(self._placement.vaults):
            number, within = self._placement.process_of(slot)
            if within in self._all[number].memory:
                found[slot] = self._all[number].memory[within]
        return found

    def link_slots(self) -> LinkSlots:
        return LinkSlots(self.memory, self.end, self._placement.attention_processes, self._weights)

    def end(self, vault: Child, slot: int, then: Callable[[], None]) -> None:
        number, within = self._placement.process_of(slot)
        self._end(vault, lambda: self._all[number].clear(within, then))

    def close(self) -> None:
        for process in self._all:
            process.close()
