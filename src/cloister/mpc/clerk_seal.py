"""How the clerk shuts itself in, as far as a process can that must reach parties over TCP: it writes no file, starts no
program, leaves no dump. A vault's seal is tighter (docs/mpc.md says by what)."""

from __future__ import annotations

import ctypes
import os
import tempfile

from cloister.process.sandbox import kernel
from cloister.process.sandbox.kernel import prctl, syscall
from cloister.process.sandbox.landlock import abi

_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 14
_PATH_BENEATH = 1
_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""ABI → how many file rights it knows (landlock(7))."""


def forbid_writing_and_executing() -> bool:
    """For this thread and those it starts, so before there are others; whether the kernel could do it."""
    tempfile.tempdir = os.devnull  # libraries ask for the folder's name when imported, and would look for one to write
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if not (version := abi()):
        return False
    every = (1 << max(count for since, count in _RIGHTS.items() if since <= version)) - 1
    handled = ctypes.c_uint64(every & ~(_READ_FILE | _READ_DIR))
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        _allow_null(ruleset, handled.value)
        syscall("landlock_restrict_self", ruleset, 0)
    except OSError:
        return False
    finally:
        os.close(ruleset)
    return True


class _Beneath(ctypes.Structure):
    """landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _allow_null(ruleset: int, handled: int) -> None:
    """Libraries open /dev/null for writing when they are imported; it keeps nothing."""
    null = os.open(os.devnull, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _Beneath(handled & (_WRITE_FILE | _TRUNCATE), null)
        syscall("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(null)
