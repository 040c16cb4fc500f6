"""A root directory with nothing below it: no file, no /proc, no /dev, and no way back."""

from __future__ import annotations

import os

from cloister.process.sandbox import ledger
from cloister.process.sandbox.descriptors import hold_null
from cloister.process.sandbox.kernel import syscall
from cloister.process.sandbox.layers import Layer

_RDONLY, _NOSUID, _NODEV, _NOEXEC = 0x1, 0x2, 0x4, 0x8
_REMOUNT, _REC, _PRIVATE = 0x20, 0x4000, 0x40000
_DETACH = 2
_ANY_DIRECTORY = b"/proc"


def empty_root() -> None:
    """For the nursery, in its own mount namespace, when all it will ever import or open is imported and open.

    Whatever does not work out is missing in the report of a child's `seal`.
    """
    hold_null()
    if Layer.MOUNT_NAMESPACE not in ledger.held():
        return  # the host's mounts are not ours to change
    hardened = _NOSUID | _NODEV | _NOEXEC
    try:
        syscall("mount", None, b"/", None, _REC | _PRIVATE, None)
        syscall("mount", b"none", _ANY_DIRECTORY, b"tmpfs", hardened, b"mode=555,size=4k,nr_inodes=1")
        os.chdir(_ANY_DIRECTORY)
        syscall("pivot_root", b".", b".")
        syscall("umount2", b".", _DETACH)  # pivot_root(2): the old root is stacked on the new one at "."
        os.chdir("/")
        syscall("mount", None, b"/", None, _REMOUNT | _RDONLY | hardened, None)
    except OSError:
        return
    if root_is_empty():
        ledger.record(Layer.EMPTY_ROOT)


def root_is_empty() -> bool:
    """Whether nothing is there and nothing can be put there."""
    try:
        return os.listdir("/") == [] and os.getcwd() == "/" and bool(os.statvfs("/").f_flag & os.ST_RDONLY)
    except OSError:
        return False
