"""A piece of shared memory as this process sees it: mapped once, read-only or writable, and checked for its size.

Made by the C library's mmap, because Python's own keeps a second descriptor, which a sealed process may not make.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_int, c_long, c_size_t, c_void_p

from cloister.errors import ProtocolError

PROT_READ, PROT_WRITE, MAP_SHARED = 1, 2, 1
FAILED = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_libc.munmap.argtypes = [c_void_p, c_size_t]


class Mapping:
    """`size` bytes of a descriptor's memory. The descriptor may be closed afterwards."""

    def __init__(self, descriptor: int, size: int, *, writable: bool) -> None:
        if os.fstat(descriptor).st_size != size:
            raise ProtocolError("A piece of shared memory has another size than it should.")
        protection = PROT_READ | PROT_WRITE if writable else PROT_READ
        address = _libc.mmap(None, size, protection, MAP_SHARED, descriptor, 0)
        if address == FAILED or address is None:
            raise OSError(ctypes.get_errno(), "shared memory cannot be mapped")
        self.address: int = address
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        """A copy of some bytes."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise IndexError("outside the mapping")
        return ctypes.string_at(self.address + offset, size)

    def word(self, offset: int) -> ctypes.c_uint32:
        """An aligned 32-bit word in place."""
        if offset % 4 or not 0 <= offset <= self.size - 4:
            raise IndexError("outside the mapping")
        return ctypes.c_uint32.from_address(self.address + offset)

    def close(self) -> None:
        if self.address:
            _libc.munmap(self.address, self.size)
            self.address = 0
