"""The tier in the host's memory, for a pool in a GPU's memory. Blocks are plain, as in the pool (adr/0009)."""

import mmap

from cloister.prefix.node import Namespace
from cloister.prefix.tier import Slots, State, Tier


class HostTier(Tier):
    """At most `capacity` bytes, reserved now. Without room, the oldest block of the tenant with most moves `below`."""

    def __init__(self, capacity: int, block_bytes: int, below: Tier | None = None) -> None:
        self._size = block_bytes
        self._below = below
        self._slots: Slots[tuple[Namespace, bytes]] = Slots(capacity // block_bytes)
        self._moved: dict[int, int] = {}  # numbers of blocks in the tier below, here and there
        # mmap, since our malloc wipes: it would write zeros to all of it now (process/).
        size = max(1, self._slots.total * block_bytes)
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def room(self, most: int) -> int:
        here = min(most, self._slots.total)
        for _ in range(here - self._slots.free):
            self._move_down(self._slots.oldest())
        return here if self._below is None or here == most else here + self._below.room(most - here)

    def store(self, namespace: Namespace, bound: bytes, data: bytes) -> int | None:
        if not self._slots.free and len(self._slots) and self._below is not None:
            self._move_down(self._slots.oldest())
        if not self._slots.free:
            return None
        number, slot = self._slots.add(namespace.tenant, (namespace, bound))
        self._memory[slot * self._size : (slot + 1) * self._size] = data
        return number

    def fetch(self, number: int, bound: bytes) -> State:
        if (held := self._slots.get(number)) is not None:
            if held[1][1] == bound:
                return State.HERE
            self.discard(number)
            return State.LOST
        if self._below is None or number not in self._moved:
            return State.LOST
        state = self._below.fetch(self._moved[number], bound)
        if state is State.LOST:
            del self._moved[number]
        return state

    def take(self, number: int) -> bytes | None:
        if self._slots.get(number) is not None:
            return self._out(number)
        if self._below is None or number not in self._moved:
            return None
        if (data := self._below.take(self._moved[number])) is not None:
            del self._moved[number]
        return data

    def discard(self, number: int) -> None:
        if self._slots.get(number) is not None:
            self._out(number)
        elif (lower := self._moved.pop(number, None)) is not None:
            assert self._below is not None
            self._below.discard(lower)

    def settle(self, seconds: float) -> bool:
        return self._below is None or self._below.settle(seconds)

    def close(self) -> None:
        for number in list(self._slots):
            self._out(number)
        if self._below is not None:
            self._below.close()

    def _out(self, number: int) -> bytes:
        held = self._slots.get(number)
        assert held is not None
        start = held[0] * self._size
        data = self._memory[start : start + self._size]
        self._memory[start : start + self._size] = bytes(self._size)
        self._slots.remove(number)
        return data

    def _move_down(self, number: int) -> None:
        held = self._slots.get(number)
        assert held is not None
        namespace, bound = held[1]
        data = self._out(number)
        if self._below is not None and self._below.room(1):
            lower = self._below.store(namespace, bound, data)
            if lower is not None:
                self._moved[number] = lower
