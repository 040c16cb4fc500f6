"""Where links lie in a process: 4 GiB of addresses that nothing else is mapped to.
A futex on shared memory reaches every process that maps the same memory: between sealed siblings the weights would be a
channel. The seccomp filter sees a futex's address only. So links have this region, and a sealed process may share no
futex elsewhere. It may not mremap, and has no other descriptor to map than a link's."""

from __future__ import annotations

import ctypes
import mmap
from ctypes import c_int, c_long, c_size_t, c_void_p
from functools import cache

from cloister.errors import SetupError

# aligned to its size, so that an address's upper word tells whether it lies inside; a large model's link: 8 MiB
SIZE = 1 << 32

_FAILED = c_void_p(-1).value
_MAP_NORESERVE = 0x4000
UNUSED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_MAP_FIXED = 0x10
NOTHING = 0  # PROT_NONE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_libc.munmap.argtypes = [c_void_p, c_size_t]
_libc.madvise.argtypes = [c_void_p, c_size_t, c_int]
_MADV_COLLAPSE = 25  # Linux 6.1


def map_shared(descriptor: int, size: int, protection: int, address: int | None = None) -> int:
    return mapped(address, size, protection, mmap.MAP_SHARED | (_MAP_FIXED if address else 0), descriptor)


def unmap(address: int, size: int) -> None:
    _libc.munmap(address, size)


def collapse(address: int, size: int) -> bool:
    """Have the kernel put what is mapped there into large pages; whether it did."""
    return bool(_libc.madvise(address, size, _MADV_COLLAPSE) == 0)


class Region:
    """Addresses with nothing behind them. A forked process inherits them and what is mapped there."""

    def __init__(self) -> None:
        taken = mapped(None, 2 * SIZE, NOTHING, UNUSED)
        self._start = self._unused = -(-taken // SIZE) * SIZE
        if before := self._start - taken:
            unmap(taken, before)
        unmap(self._start + SIZE, SIZE - before)
        self._free: dict[int, list[int]] = {}

    @property
    def upper_word(self) -> int:
        return self._start >> 32

    def map(self, descriptor: int, size: int, protection: int) -> int:
        pages = _whole_pages(size)
        free = self._free.setdefault(pages, [])
        if not free:
            free.append(self._take(pages))
        map_shared(descriptor, size, protection, free[-1])
        return free.pop()

    def release(self, address: int, size: int) -> None:
        """Nothing lies there now; still no other mapping may come to lie there."""
        pages = _whole_pages(size)
        mapped(address, pages, NOTHING, UNUSED | _MAP_FIXED)
        self._free[pages].append(address)

    def _take(self, pages: int) -> int:
        address = self._unused
        if address + pages > self._start + SIZE:
            raise SetupError("A process has no addresses left for another link.", hint="Allow fewer with --max-vaults.")
        self._unused += pages
        return address


@cache
def links() -> Region:
    """This process's own; a process that forks others has it before."""
    return Region()


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def mapped(address: int | None, size: int, protection: int, flags: int, descriptor: int = -1) -> int:
    """By C's mmap: Python's own keeps a second descriptor, which a sealed process may not make."""
    found = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
    return int(found)
