"""Landlock (landlock(7)): a ruleset that handles every right and grants none, and one that leaves reading."""

import ctypes
import os
from collections.abc import Collection, Mapping

from cloister.process.sandbox.kernel import syscall

_VERSION = 1 << 0
# ABI → how many file rights it knows: thirteen, then refer, truncate, ioctl of devices.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}
_TCP_SINCE, _BIND_AND_CONNECT = 4, 0b11
_SCOPES_SINCE, _ABSTRACT_SOCKETS_AND_SIGNALS = 6, 0b11
_WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_RULE_PATH_BENEATH = 1


def abi() -> int:
    try:
        return syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError:
        return 0


def file_rights(version: int) -> int:
    return (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= version)) - 1


def forbid_files_and_network(writable: Collection[str] = (), readable: Collection[str] = ()) -> bool:
    """For this thread and its threads; open files and these paths stay. Needs no_new_privs or a capability."""
    version = abi()
    if not version:
        return False
    excepted = {path: _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0) for path in (*writable, *readable)}
    for path in writable:
        excepted[path] |= file_rights(version) & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEV)
    return _restrict(version, file_rights(version), excepted, network=False) and root_cannot_be_opened()


def bind_to_this_root() -> bool:
    """For this thread and its threads: the files below today's root. When another takes its place, none are left."""
    version = abi()
    if not version:
        return False
    return _restrict(version, file_rights(version), {"/": file_rights(version)}, network=True)


def only_read(*, network: bool) -> bool:
    """For this thread and its threads; /dev/null stays writable. Without `network`: no TCP, no signal outside."""
    version = abi()
    if not version:
        return False
    handled = file_rights(version) & ~(_READ_FILE | _READ_DIR)
    return _restrict(version, handled, {os.devnull: handled & (_WRITE_FILE | _TRUNCATE)}, network=network)


def _restrict(version: int, handled: int, excepted: Mapping[str, int], *, network: bool) -> bool:
    """What is `handled` is taken away, except these rights below these paths."""
    ruleset = _ruleset(version, handled, network=network)
    try:
        for path, rights in excepted.items():
            _except(ruleset, path, rights)
        syscall("landlock_restrict_self", ruleset, 0)
    except OSError:
        return False
    finally:
        os.close(ruleset)
    return True


def _except(ruleset: int, path: str, rights: int) -> None:
    file = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, file)
        syscall("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(file)


class _PathBeneath(ctypes.Structure):
    """landlock_path_beneath_attr."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _ruleset(version: int, files: int, *, network: bool) -> int:
    handled = (ctypes.c_uint64 * 3)(
        files,
        _BIND_AND_CONNECT if version >= _TCP_SINCE and not network else 0,
        _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _SCOPES_SINCE and not network else 0,
    )
    size = 8 * (3 if version >= _SCOPES_SINCE else 2 if version >= _TCP_SINCE else 1)
    return syscall("landlock_create_ruleset", ctypes.byref(handled), size, 0)


def root_cannot_be_opened() -> bool:
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return True
    return False
