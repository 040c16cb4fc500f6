"""Tokens as a Python list or tuple has them: pointers side by side to int objects of these values."""

import ctypes
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from cloister.audit.needles import Bytes, Needles

BODY_AT, BODY = 16, 12
LOW_BYTES = 3
"""Of an address: enough to be rare. Those above are the same for all objects side by side."""


class IntLists:
    """Lists of these values in processes of one family: what was forked has its objects where the parent has them."""

    def __init__(self, values: tuple[int, ...]) -> None:
        assert all(256 < value < 1 << 30 for value in values), "small ints are shared, large ones have two digits"
        self._bodies = [ctypes.string_at(id(value) + BODY_AT, BODY) for value in values]
        self._firsts: set[int] = set()

    @property
    def first(self) -> bytes:
        """What an int object of the first value is after its reference count and type."""
        return self._bodies[0]

    def add(self, bodies: Iterable[int]) -> None:
        """Where such bodies were found."""
        self._firsts |= {address - BODY_AT for address in bodies if address % 8 == 0}

    def pointers(self, data: Bytes) -> Iterator[tuple[int, int]]:
        """Where in these bytes a list could begin, and where its first pointer would end."""
        if not self._firsts:
            return
        known = {struct.pack("<Q", address) for address in self._firsts}
        lows = {word[:LOW_BYTES] for word in known}
        for begin, _, _ in Needles({low.hex(): low for low in lows}).places(data):
            if begin % 8 == 0 and bytes(data[begin : begin + 8]) in known:
                yield begin, begin + 8

    def among(self, places: Iterable[int], memory: int) -> Iterator[int]:
        """Those addresses at which there is such a list."""
        for place in places:
            pointers = struct.iter_unpack("<Q", self._read(memory, place, 8 * len(self._bodies)))
            if [self._read(memory, address + BODY_AT, BODY) for (address,) in pointers] == self._bodies:
                yield place

    def _read(self, memory: int, address: int, size: int) -> bytes:
        with suppress(OSError, OverflowError):
            data = os.pread(memory, size, address)
            return data if len(data) == size else b""
        return b""
