"""What confines the engine's process: no network but its own loopback, which vLLM's ranks use; no powers. It still sees
files, and no filter of system calls follows its start: evidence names these layers as missing."""

import fcntl
import os
import socket
import struct

from cloister.errors import SandboxIncomplete
from cloister.process.hardening import die_with_parent, forbid_core_dumps
from cloister.process.sandbox import kernel, layers
from cloister.process.sandbox.credentials import any_capability, drop_capabilities
from cloister.process.sandbox.kernel import prctl
from cloister.process.sandbox.layers import Layer
from cloister.process.sandbox.namespaces import enter, map_onto_itself

_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP | IFF_RUNNING
_NAMESPACES = frozenset({Layer.USER_NAMESPACE, Layer.NETWORK_NAMESPACE, Layer.IPC_NAMESPACE, Layer.UTS_NAMESPACE})
APPLIED = _NAMESPACES | {Layer.NO_NEW_PRIVS, Layer.CAPABILITIES, Layer.NOT_DUMPABLE, Layer.DEATH_WITH_PARENT}


def confine() -> None:
    """Before any thread. SandboxIncomplete unless all of `APPLIED` holds."""
    uid, gid, parent = os.geteuid(), os.getegid(), os.getppid()
    held = set(enter(_NAMESPACES))
    if Layer.USER_NAMESPACE in held:
        map_onto_itself(uid, gid)
    if Layer.NETWORK_NAMESPACE in held:
        _raise_loopback()
    prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities()
    forbid_core_dumps()
    held |= {Layer.NO_NEW_PRIVS, Layer.NOT_DUMPABLE}
    held |= {Layer.CAPABILITIES} if not any_capability() else set()
    held |= {Layer.DEATH_WITH_PARENT} if die_with_parent() and os.getppid() == parent else set()
    layers.record(*held)
    if lacking := sorted(APPLIED - held):
        raise SandboxIncomplete(f"The engine's process cannot be confined: it lacks {', '.join(lacking)}.")


def _raise_loopback() -> None:
    """A new network namespace has no other device."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))
