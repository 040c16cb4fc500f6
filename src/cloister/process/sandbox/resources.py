"""What a sealed process keeps: its profile's descriptors, limited memory; no environment, new process, file or core."""

import ctypes
import mmap
import os
import resource
from collections.abc import Collection

from cloister.process.sandbox.kernel import can_map_page, syscall
from cloister.process.sandbox.layers import Profile

_LAST = 2**32 - 1
_MOST_LOOKED_AT = 4096
_null: int | None = None


def hold_null() -> None:
    """While there is a /dev, for `silence_standard` in a forked child."""
    global _null
    if _null is None:
        _null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


def use_null(descriptor: int) -> None:
    """Not one that is shared with siblings: the flags of an open file are a channel between all who share it."""
    global _null
    _null = descriptor


def silence_standard(keep: Collection[int]) -> None:
    if _null is None:
        hold_null()
    assert _null is not None
    for standard in (0, 1, 2):
        if standard not in keep:
            os.dup2(_null, standard, inheritable=False)


def close_all_but(keep: Collection[int]) -> None:
    """Also those that libraries opened."""
    gap = 0
    for kept in (*sorted(set(keep)), _LAST + 1):
        if kept > gap:
            syscall("close_range", gap, kept - 1, 0)
        gap = kept + 1


def open_descriptors() -> set[int]:
    """Asked one by one: there may be no /proc."""
    most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_LOOKED_AT)
    return {descriptor for descriptor in range(most) if _is_open(descriptor)}


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


# No thread can be started after the seal: libraries do not try.
_FIXED = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
_environ = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")


def clean_environment() -> bool:
    """Wipes the strings where they lie (on the stack since exec, /proc/PID/environ shows it), then starts afresh."""
    index = 0
    while _environ and (address := _environ[index]):
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
        index += 1
    ctypes.CDLL(None).clearenv()
    os.environ.clear()
    os.environ.update(_FIXED)
    return dict(os.environ) == _FIXED


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
    """What RLIMIT_DATA counts: /proc is gone, so the limit is moved until one page more does not fit."""
    page = mmap.PAGESIZE
    before = resource.getrlimit(resource.RLIMIT_DATA)
    ceiling = _LARGEST if before[1] == resource.RLIM_INFINITY else min(_LARGEST, before[1])
    least, most = 1, ceiling // page  # a limit of 0 has a special meaning to the kernel
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


_CURRENT, _FUTURE, _ON_FAULT = 1, 2, 4


class _SystemInformation(ctypes.Structure):
    """sysinfo(2), as far as it is read here; the rest is room for the kernel to write."""

    _fields_ = (
        ("uptime", ctypes.c_long),
        ("loads", ctypes.c_ulong * 3),
        ("memory", ctypes.c_ulong * 4),
        ("swap_total", ctypes.c_ulong),
        ("rest", ctypes.c_char * 256),
    )


def lock_memory() -> bool:
    """Pages are locked as they are touched: locking all at once would copy every page shared with the fork server."""
    try:
        syscall("mlockall", _CURRENT | _FUTURE | _ON_FAULT)
    except OSError:
        return False  # not even a part: with a small limit, later mappings would fail
    return True


def machine_has_swap() -> bool:
    information = _SystemInformation()
    syscall("sysinfo", ctypes.byref(information))
    return bool(information.swap_total)
