"""The tier in the host's memory, for a pool that is a GPU's: blocks that left it, plain, in memory of a fixed size.

Plain as in the pool itself: this process has the keys in the same memory, so encryption would hide nothing from whoever
reads it (adr/0009). A place is overwritten as soon as its block goes. What there is no room for goes to the tier below.
"""

from __future__ import annotations

import mmap

from cloister.prefix.owners import Owner
from cloister.prefix.tier import Shelf, State, Tier


class HostTier(Tier):
    """At most `capacity` bytes, reserved now and taken as they are written. `below` gets the oldest of who has most."""

    def __init__(self, capacity: int, block_bytes: int, below: Tier | None = None) -> None:
        self._size = block_bytes
        self._below = below
        self._shelf: Shelf[tuple[Owner, bytes]] = Shelf(capacity // block_bytes)
        self._moved: dict[int, int] = {}
        """Numbers of what is in the tier below, and the numbers it has there."""
        # From the kernel itself: an allocator that wipes what it frees writes zeros to all it gives out, too.
        size = max(1, self._shelf.places * block_bytes)
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def room(self, most: int) -> int:
        here = min(most, self._shelf.places)
        for _ in range(here - self._shelf.free):
            self._move_down(self._shelf.oldest())
        return here if self._below is None or here == most else here + self._below.room(most - here)

    def store(self, owner: Owner, bound: bytes, data: bytes) -> int | None:
        if not self._shelf.free and len(self._shelf) and self._below is not None:
            self._move_down(self._shelf.oldest())
        if not self._shelf.free:
            return None
        number, place = self._shelf.add(owner.account, (owner, bound))
        self._memory[place * self._size : (place + 1) * self._size] = data
        return number

    def fetch(self, number: int, bound: bytes) -> State:
        if (held := self._shelf.get(number)) is not None:
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
        if self._shelf.get(number) is not None:
            return self._out(number)
        if self._below is None or number not in self._moved:
            return None
        if (data := self._below.take(self._moved[number])) is not None:
            del self._moved[number]
        return data

    def discard(self, number: int) -> None:
        if self._shelf.get(number) is not None:
            self._out(number)
        elif (lower := self._moved.pop(number, None)) is not None:
            assert self._below is not None
            self._below.discard(lower)

    def settle(self, seconds: float) -> bool:
        return self._below is None or self._below.settle(seconds)

    def close(self) -> None:
        for number in list(self._shelf):
            self._out(number)
        if self._below is not None:
            self._below.close()

    def _out(self, number: int) -> bytes:
        """What a block holds; its place is overwritten."""
        held = self._shelf.get(number)
        assert held is not None
        start = held[0] * self._size
        data = self._memory[start : start + self._size]
        self._memory[start : start + self._size] = bytes(self._size)
        self._shelf.remove(number)
        return data

    def _move_down(self, number: int) -> None:
        held = self._shelf.get(number)
        assert held is not None
        owner, bound = held[1]
        data = self._out(number)
        if self._below is not None and self._below.room(1):
            lower = self._below.store(owner, bound, data)
            if lower is not None:
                self._moved[number] = lower
