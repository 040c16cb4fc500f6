"""Sleeping on a word of shared memory, and waking who sleeps on it. Other Python threads run meanwhile."""

from __future__ import annotations

import ctypes
import platform
from ctypes import byref, c_int, c_long, c_uint32, c_void_p

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_WAIT, _WAKE = 0, 1
_EVERYONE = 2**31 - 1


class _Time(ctypes.Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


_libc = ctypes.CDLL(None)
_futex = _libc.syscall
_futex.argtypes = [c_long, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_uint32]
_futex.restype = c_long


def sleep_on(address: int, value: int, seconds: float | None = None) -> None:
    """Until woken, or at once if the word is not `value`, or for so long at most; a spurious return is possible."""
    limit = None
    if seconds is not None:
        limit = byref(_Time(int(seconds), int(seconds % 1 * 1e9)))
    _futex(_SYS_FUTEX, address, _WAIT, value, limit, None, 0)


def wake(address: int) -> None:
    _futex(_SYS_FUTEX, address, _WAKE, _EVERYONE, None, None, 0)
