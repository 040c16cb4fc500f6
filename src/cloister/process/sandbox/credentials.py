"""Ids, capabilities, no_new_privs, Landlock, the parent's end: per thread in Linux, so settled before any thread."""

import ctypes
import os
import resource
from collections.abc import Collection, Iterator
from contextlib import suppress

from cloister.process.sandbox import kernel, layers
from cloister.process.sandbox.kernel import prctl, syscall
from cloister.process.sandbox.landlock import forbid_files_and_network
from cloister.process.sandbox.layers import Layer

UNPRIVILEGED = 65534  # by convention a user and group that own nothing
_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63
_WHOLE_MACHINE = 2**32 - 1


def become_nobody() -> None:
    """For good; it first lifts its limit on locked memory. Others stay."""
    if os.geteuid() != 0:
        return
    with suppress(ValueError, OSError):  # memory_lock will be reported as missing
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        os.setgroups([])
        os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
        os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    except OSError:
        if _root_of_the_machine():
            raise
        # A container's root with no other id to become: to the machine it is an unprivileged user already.


def give_up_powers(without: Collection[Layer], writable: Collection[str] = (), readable: Collection[str] = ()) -> None:
    """No capability, none to be gained by executing something, no file, no network. Excepted: landlock.py."""
    if Layer.NO_NEW_PRIVS not in without:
        prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        layers.record(Layer.NO_NEW_PRIVS)
    if Layer.LANDLOCK not in without and forbid_files_and_network(writable, readable):
        layers.record(Layer.LANDLOCK)
    if Layer.CAPABILITIES not in without:
        drop_capabilities()
        if not any_capability():
            layers.record(Layer.CAPABILITIES)


def any_capability() -> bool:
    return holds_capability() or next(_bounding_set(), None) is not None


def holds_capability() -> bool:
    sets = (ctypes.c_uint32 * 6)()
    syscall("capget", ctypes.byref(_header()), ctypes.byref(sets))
    return any(sets)


def drop_capabilities() -> None:
    for number in _bounding_set():
        try:
            prctl(kernel.PR_CAPBSET_DROP, number)
        except PermissionError:
            break  # not ours to drop: without a user namespace, an unprivileged user has no say in it
    prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
    syscall("capset", ctypes.byref(_header()), ctypes.byref((ctypes.c_uint32 * 6)()))


def _bounding_set() -> Iterator[int]:
    for number in range(_HIGHEST_CAPABILITY + 1):
        try:
            held = prctl(kernel.PR_CAPBSET_READ, number)
        except OSError:
            return  # this kernel has no more capabilities: they are numbered without a gap
        if held:
            yield number


def _header() -> ctypes.Array[ctypes.c_uint32]:
    return (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)


def _root_of_the_machine() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", str(_WHOLE_MACHINE)]
