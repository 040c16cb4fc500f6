"""Resource limits: no process, no thread, no file, no core; memory as much as was agreed."""

from __future__ import annotations

import mmap
import resource

from cloister.process.sandbox.kernel import can_map_page
from cloister.process.sandbox.profile import Profile

_LARGEST = 1 << 46


def limit(profile: Profile) -> bool:
    """Sets the limits and reads them back. Threads must exist already; memory counts from what is mapped now."""
    fixed = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NOFILE: min(profile.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        resource.RLIMIT_DATA: data_size() + profile.data_bytes,
    }
    for what, most in fixed.items():
        resource.setrlimit(what, (most, most))
    return all(resource.getrlimit(what) == (most, most) for what, most in fixed.items())


def data_size() -> int:
    """Bytes of private writable memory mapped by this process: what RLIMIT_DATA counts.

    /proc says it, but is gone: so the limit is moved until one page more just does not fit. This also proves that the
    kernel enforces it (it can be booted not to).
    """
    page = mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _LARGEST if before[1] == resource.RLIM_INFINITY else min(_LARGEST, before[1])
    least, most = 1, ceiling // page  # a limit of 0 has a meaning of its own to the kernel
    try:
        while least < most:
            middle = (least + most) // 2
            resource.setrlimit(resource.RLIMIT_DATA, (middle * page, before[1]))
            if can_map_page(page):
                most = middle
            else:
                least = middle + 1
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    if least == 1:
        raise OSError("this kernel does not enforce RLIMIT_DATA")
    return (least - 1) * page
