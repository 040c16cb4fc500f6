"""Landlock: a ruleset that handles every right the kernel knows and grants none (landlock(7))."""

from __future__ import annotations

import ctypes
import os

from cloister.process.sandbox.kernel import syscall

_VERSION = 1 << 0
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
"""ABI → how many file rights it knows: the first thirteen, then refer, truncate, ioctl of devices."""
_TCP_SINCE, _BIND_AND_CONNECT = 4, 0b11
_SCOPES_SINCE, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 0b11


def abi() -> int:
    """Which version the kernel offers; 0 where it has none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def file_rights(version: int) -> int:
    """Every right on files that this version knows, one bit each."""
    return (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= version)) - 1


def forbid_files_and_network() -> bool:
    """For the calling thread and those it starts: no file can be opened, no TCP port used, nobody outside signalled.

    Needs no_new_privs or a capability. What is open already stays usable.
    """
    version = abi()
    if not version:
        return False
    handled = (ctypes.c_uint64 * 3)(
        file_rights(version),
        _BIND_AND_CONNECT if version >= _TCP_SINCE else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPES_SINCE else 0,
    )
    size = 8 * (3 if version >= _SCOPES_SINCE else 2 if version >= _TCP_SINCE else 1)
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(handled), size, 0)
    try:
        syscall("landlock_restrict_self", ruleset, 0)
    except OSError:
        return False
    finally:
        os.close(ruleset)
    return _root_cannot_be_opened()


def _root_cannot_be_opened() -> bool:
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return True
    return False
