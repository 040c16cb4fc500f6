"""The sandbox of the engine's process: its namespaces before it loads vLLM, which needs files, threads and a loopback;
after its warm-up, when nothing is left to load, the seal of our own service, with a wider filter."""

import fcntl
import os
import resource
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from cloister.errors import SandboxIncomplete
from cloister.link.memory import links
from cloister.process.sandbox import layers
from cloister.process.sandbox.credentials import give_up_powers
from cloister.process.sandbox.kernel import syscall
from cloister.process.sandbox.landlock import bind_to_this_root, root_cannot_be_opened
from cloister.process.sandbox.layers import ON_A_GPU, Layer, Profile, Report
from cloister.process.sandbox.namespaces import helper_empties_root, leave_host, see_own_processes
from cloister.process.sandbox.resources import hold_null
from cloister.process.sandbox.seal import seal
from cloister.process.sandbox.seccomp import install_serving

BEYOND = 2048 * (1 << 20)  # memory that the process may take after the seal: its caches are reserved before
_OF_THREADS = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]", "pipe:", "socket:")
_STANDARD = 2
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP | IFF_RUNNING


def confine() -> Callable[[], None]:
    """Before any thread. What is returned takes the files away, from all threads."""
    with suppress(ValueError, OSError):  # memory_lock will be reported as missing
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    leave_host(shed_root=False)  # files that are its user's alone are read; without the root they lie in, none are
    held = layers.held()
    if Layer.UTS_NAMESPACE in held:
        syscall("sethostname", b"cloister", 8)
    if Layer.NETWORK_NAMESPACE in held:
        _raise_loopback()
    see_own_processes()
    hold_null()
    empty_root = helper_empties_root()
    give_up_powers({Layer.LANDLOCK})
    bound = bind_to_this_root()

    def take_files() -> None:
        with suppress(OSError):
            empty_root()
        if bound and root_cannot_be_opened():
            layers.record(Layer.LANDLOCK)

    return take_files


def without_seal(*, allow_degraded: bool) -> Report:
    """Several processes need files and sockets between them: SandboxIncomplete, unless that is accepted."""
    report = Report.of(layers.held() | ON_A_GPU)
    report.require(allow_degraded=allow_degraded)
    return report


def seal_engine(take_files: Callable[[], None], control: socket.socket, *, allow_degraded: bool) -> Report:
    """SandboxIncomplete if a layer is missing, and one is: oneDNN writes code for each new shape of a product, so the
    filter of system calls that forbids this cannot follow. One that ends the process at a plain attack does."""
    futexes = links().upper_word
    kept = {control.fileno(), *_of_threads()}
    take_files()
    without = frozenset({Layer.SECCOMP})
    sealed = Profile("service", kept, BEYOND, futexes, without=without, allow_degraded=allow_degraded)
    report = seal(sealed)
    if not install_serving():
        raise SandboxIncomplete("The engine's process cannot filter its system calls.")
    return report


def _of_threads() -> set[int]:
    """What threads of torch's groups sleep on, and end the process without: between themselves, or on our loopback."""
    kept = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(_OF_THREADS) and int(name) > _STANDARD:
                kept.add(int(name))
    return kept


def _raise_loopback() -> None:
    """A new network namespace has no other device."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP_AND_RUNNING))
