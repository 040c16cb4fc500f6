"""What the kernel says of large pages, asked without the project's code."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from functools import cache
from pathlib import Path

import pytest

from cloister.models.memory_file import ReadOnlyMapping, large_page

_MADV_COLLAPSE = 25


def in_large_pages(mapping: ReadOnlyMapping, size: int) -> int:
    """Bytes of a mapping that large pages hold, once each page was read."""
    for offset in range(0, size, mmap.PAGESIZE):
        ctypes.string_at(mapping.address + offset, 1)
    places = Path("/proc/self/smaps").read_text().split("VmFlags")
    [place] = [place for place in places if f"\n{mapping.address:x}-" in place]
    [line] = [line for line in place.splitlines() if line.startswith("ShmemPmdMapped:")]
    return int(line.split()[1]) * 1024


@cache
def _refusal() -> int:
    """Why the kernel puts no memory file into large pages; 0: it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.memfd_create("probe")
    os.write(fd, b"x" * large_page())
    mapping = ReadOnlyMapping(fd, large_page())
    os.close(fd)
    failed = libc.madvise(ctypes.c_void_p(mapping.address), ctypes.c_size_t(large_page()), _MADV_COLLAPSE)
    why = ctypes.get_errno() if failed else 0
    mapping.close()
    return why


def skip_unless_the_kernel_gives_large_pages() -> None:
    if why := _refusal():
        pytest.skip(f"this kernel gives memory files no large pages: {errno.errorcode.get(why, why)}")
