"""Memory that stays in memory: locked where the user may lock, and never written to a swap device."""

from __future__ import annotations

import ctypes

from cloister.process.sandbox.kernel import syscall

_CURRENT, _FUTURE, _ON_FAULT = 1, 2, 4


class _SystemInformation(ctypes.Structure):
    """struct sysinfo of sysinfo(2), as far as it is read here; the rest is room for the kernel to write."""

    _fields_ = (
        ("uptime", ctypes.c_long),
        ("loads", ctypes.c_ulong * 3),
        ("memory", ctypes.c_ulong * 4),
        ("swap_total", ctypes.c_ulong),
        ("rest", ctypes.c_char * 256),
    )


def lock_memory() -> bool:
    """Pages are locked as they are touched: locking all at once would copy every page shared with the nursery."""
    try:
        syscall("mlockall", _CURRENT | _FUTURE | _ON_FAULT)
    except OSError:
        return False  # not even a part: with a small limit, later mappings would fail
    return True


def machine_has_swap() -> bool:
    information = _SystemInformation()
    syscall("sysinfo", ctypes.byref(information))
    return bool(information.swap_total)
