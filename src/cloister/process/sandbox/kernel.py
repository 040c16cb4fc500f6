"""Calls into Linux for which Python has no function. Each raises OSError when the kernel says no."""

from __future__ import annotations

import ctypes
import os

from cloister.process.sandbox.syscalls import number_of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

MAP_FAILED = ctypes.c_void_p(-1).value

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
PR_GET_SECCOMP = 21
PR_CAPBSET_READ, PR_CAPBSET_DROP = 23, 24
PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 38, 39
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def syscall(name: str, *arguments: int | bytes | ctypes._CArgObject | None) -> int:
    """The system call of this name; integers are passed as full words, as the kernel reads them."""
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return checked(int(_libc.syscall(ctypes.c_long(number_of(name)), *words)))


def prctl(option: int, second: int = 0, third: int = 0) -> int:
    return syscall("prctl", option, second, third, 0, 0)


def can_map_page(size: int) -> bool:
    """Whether the kernel gives one more page of private writable memory; it is given back at once."""
    address = _libc.mmap(None, size, 0x3, 0x22, -1, 0)
    if address == MAP_FAILED:
        return False
    _libc.munmap(address, size)
    return True
