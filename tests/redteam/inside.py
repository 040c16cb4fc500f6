"""The real fork server, whose children do as they are told instead of their work: `python -m tests.redteam.inside FD`.

Everything up to and including the seal is the fork server's own code. Only `run`, what a vault or the service does from
then on, is replaced: it takes the name of an attempt, makes it, and says what came of it. CLOISTER_TEST_WITHOUT names
layers of the sandbox to leave out.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import importlib
import json
import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cloister.link.memory import links
from cloister.models import torch_metas
from cloister.process.sandbox.kernel import syscall
from cloister.process.sandbox.layers import Layer
from tests.process.sandbox import attempts

NOT_IMPORTED = "wave"
LINK_DESCRIPTORS = 2
FIONBIO = 0x5421
FUTEX_WAIT, FUTEX_WAKE, FUTEX_32, MREMAP_TO = 0, 1, 2, 3
HEARS_FOR_S = 20
_PROBED_DESCRIPTORS = range(3, 1200)
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

weights_at = 0


class Here(SimpleNamespace):
    """What an attacker finds: its role's object, its control socket, a link it was sent; and pids it was told of."""

    role: Any
    control: socket.socket
    link: list[int]
    pids: list[int]


def _refused() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _make_writable(address: int) -> None:
    page = address & -mmap.PAGESIZE
    if _libc.mprotect(page, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        raise _refused()


def _any(tries: list[Callable[[], Any]]) -> Any:
    """What the first try that succeeds returns, or the last refusal."""
    refusal: OSError | None = None
    for one in tries:
        try:
            return one()
        except OSError as error:
            refusal = error
    assert refusal is not None
    raise refusal


# ---- reaching out


def open_netlink(here: Here) -> None:
    socket.socket(socket.AF_NETLINK, socket.SOCK_RAW).close()


def open_vsock(here: Here) -> None:
    socket.socket(socket.AF_VSOCK).close()


def connect_control(here: Here) -> None:
    attempts.connect(here.control.fileno())


def send_descriptor(here: Here) -> None:
    socket.send_fds(here.control, [b"\n"], [here.control.fileno()])


def speak_to_standard_output(here: Here) -> None:
    for standard in (1, 2):
        os.write(standard, b"a secret\n")
    print("a secret", file=sys.__stderr__, flush=True)


def signal_by_file_flags(here: Here) -> None:
    """A flag of an open file is seen by all who share it."""
    for standard in (0, 1, 2):
        fcntl.ioctl(standard, FIONBIO, b"\1\0\0\0")


def see_file_flags(here: Here) -> None:
    if not any(fcntl.fcntl(standard, fcntl.F_GETFL) & os.O_NONBLOCK for standard in (0, 1, 2)):
        raise OSError("nobody has signalled")


def _word_of_weights() -> int:
    return weights_at


def _word_of_moved_weights() -> int:
    """The weights, moved to where the links are."""
    there = links().upper_word << 32
    syscall("mremap", weights_at, mmap.PAGESIZE, mmap.PAGESIZE, MREMAP_TO, there)
    return there


def _word_of_code() -> int:
    """A library's code: private to each who maps it, and one page of one file for all."""
    return (ctypes.cast(_libc.getpid, ctypes.c_void_p).value or 0) & -4


WORDS = {"weights": _word_of_weights, "moved_weights": _word_of_moved_weights, "code": _word_of_code}


def _hear(word: int) -> None:
    """Sleep on a word until a sibling wakes us."""
    value = ctypes.c_uint32.from_address(word).value
    patience = (ctypes.c_long * 2)(HEARS_FOR_S, 0)
    syscall("futex", word, FUTEX_WAIT, value, ctypes.byref(patience), None, 0)


def _signal(word: int) -> None:
    """Wake a sibling that sleeps on a word, or is about to."""
    end = time.monotonic() + HEARS_FOR_S
    while not syscall("futex", word, FUTEX_WAKE, 1, None, None, 0):
        os.sched_yield()
        if time.monotonic() > end:
            raise OSError("nobody sleeps there")


def hear_by_list(here: Here) -> None:
    """The call that takes a list of futexes (futex_waitv)."""
    waiter = (ctypes.c_uint64 * 3)(ctypes.c_uint32.from_address(weights_at).value, weights_at, FUTEX_32)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 10**9
    until = (ctypes.c_long * 2)(now + HEARS_FOR_S, 0)
    syscall("futex_waitv", ctypes.byref(waiter), 1, 0, ctypes.byref(until), time.CLOCK_MONOTONIC)


# ---- other processes


def signal_others(here: Here) -> None:
    _any([lambda pid=pid: os.kill(pid, 0) for pid in (*here.pids, *range(2, 100))])  # type: ignore[misc]


def trace_others(here: Here) -> None:
    _any([lambda pid=pid: syscall("ptrace", 16, pid, 0, 0) for pid in here.pids])  # type: ignore[misc]


def read_memory_of_others(here: Here) -> None:
    page = ctypes.create_string_buffer(8)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(page), 8)
    far = (ctypes.c_uint64 * 2)(weights_at, 8)
    _any(
        [
            lambda pid=pid: syscall("process_vm_readv", pid, ctypes.byref(local), 1, ctypes.byref(far), 1, 0)  # type: ignore[misc]
            for pid in here.pids
        ]
    )


def read_environment_of_others(here: Here) -> None:
    _any([lambda pid=pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in ("self", 1, *here.pids)])  # type: ignore[misc]


# ---- memory that is another's


def map_by_guessed_descriptor(here: Here) -> None:
    _any([lambda fd=fd: mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ) for fd in _PROBED_DESCRIPTORS])  # type: ignore[misc]


def open_descriptors_of_others(here: Here) -> None:
    paths = [f"/proc/{pid}/fd/{fd}" for pid in ("self", 1, *here.pids) for fd in range(20)]
    _any([lambda path=path: os.open(path, os.O_RDWR) for path in paths])  # type: ignore[misc]


def write_weights(here: Here) -> None:
    ctypes.memset(weights_at, 0, 8)


def make_weights_writable(here: Here) -> None:
    _make_writable(weights_at)


def write_by_guessed_descriptor(here: Here) -> None:
    """Anything but the standard ones and those of its own: the weights, say."""
    own = {here.control.fileno(), *here.link, *getattr(here.role, "descriptors", ())}
    _any([lambda fd=fd: os.write(fd, b"x") for fd in _PROBED_DESCRIPTORS if fd not in own])  # type: ignore[misc]


def write_question_from_vault(here: Here) -> None:
    ctypes.memset(here.role._answerer._question.address, 0, 8)


def make_question_writable_in_vault(here: Here) -> None:
    _make_writable(here.role._answerer._question.address)


def write_answer_from_service(here: Here) -> None:
    from cloister.link.memory import Mapping

    ctypes.memset(Mapping(here.link[1], os.fstat(here.link[1]).st_size, writable=False).address, 0, 8)


def map_answer_writable_in_service(here: Here) -> None:
    mmap.mmap(here.link[1], mmap.PAGESIZE)


def write_answer_descriptor_in_service(here: Here) -> None:
    os.write(here.link[1], b"x")


def resize_question_from_service(here: Here) -> None:
    os.ftruncate(here.link[0], 0)


def write_question_from_service(here: Here) -> None:
    """What the service is there for: it must succeed, or the attempts beside it prove nothing."""
    from cloister.link.memory import Mapping

    ctypes.memset(Mapping(here.link[0], os.fstat(here.link[0]).st_size, writable=True).address + 2048, 1, 8)


# ---- code


def import_new_module(here: Here) -> None:
    assert NOT_IMPORTED not in sys.modules
    importlib.import_module(NOT_IMPORTED)


RTLD_NOLOAD = 4


def load_library(here: Here) -> None:
    for name in ("libutil.so.1", "libanl.so.1", "libBrokenLocale.so.1", "libthread_db.so.1"):
        try:
            ctypes.CDLL(name, mode=RTLD_NOLOAD)  # what is here already proves nothing
        except OSError:
            ctypes.CDLL(name)
            return
    raise OSError("all of them are here already")


def read_file(here: Here) -> None:
    _any([lambda path=path: os.open(path, os.O_RDONLY) for path in ("/etc/passwd", "/proc/self/maps", "/", ".")])  # type: ignore[misc]


def _of_the_unit_tests(name: str) -> Callable[[Here], None]:
    return lambda here: getattr(attempts, name)(here.control.fileno())


ATTEMPTS: dict[str, Callable[[Here], None]] = {
    name: _of_the_unit_tests(name)
    for name in (
        *("open_internet_socket", "open_local_socket", "make_socket_pair", "listen", "send_to_an_address"),
        *(
            "write_file",
            "open_for_writing",
            "make_folder",
            "fork",
            "fork_by_raw_call",
            "fork_by_clone3",
            "start_thread",
        ),
        *("execute", "spawn", "signal_everyone", "signal_parent", "map_executable", "make_executable"),
        *("create_memory_file", "create_shared_memory", "become_root", "mount", "new_namespace", "change_root"),
        *("use_ring", "use_bpf", "use_faults", "use_counters", "use_keys", "get_handle_of_process", "load_module"),
        *("become_dumpable", "set_limit", "old_system_call"),
    )
} | {
    one.__name__: one
    for one in (
        *(open_netlink, open_vsock, connect_control, send_descriptor, speak_to_standard_output),
        *(signal_by_file_flags, see_file_flags, hear_by_list),
        *(signal_others, trace_others, read_memory_of_others, read_environment_of_others),
        *(map_by_guessed_descriptor, open_descriptors_of_others, write_weights, make_weights_writable),
        *(write_by_guessed_descriptor, write_question_from_vault, make_question_writable_in_vault),
        *(write_answer_from_service, map_answer_writable_in_service, write_answer_descriptor_in_service),
        *(resize_question_from_service, write_question_from_service, import_new_module, load_library, read_file),
    )
}


ATTEMPTS |= {f"hear_by_{name}": lambda _, word=word: _hear(word()) for name, word in WORDS.items()}
ATTEMPTS |= {f"signal_by_{name}": lambda _, word=word: _signal(word()) for name, word in WORDS.items()}


def _try(role: Any, control: socket.socket) -> None:
    """In place of the role's own `run`: it is sealed, and starts to be evil."""
    control.sendall(b"sealed\n")
    if type(role).__name__ == "Service":
        order, link, _, _ = socket.recv_fds(control, 4096, LINK_DESCRIPTORS)
    else:
        order, link = control.recv(4096), []
    told = json.loads(order)
    result: dict[str, Any] = {"error": None}
    try:
        ATTEMPTS[told["attempt"]](Here(role=role, control=control, link=list(link), pids=told["pids"]))
    except (OSError, ImportError) as error:
        result = {"error": type(error).__name__}
    except BaseException as error:
        result = {"broken": f"{type(error).__name__}: {error}"}
    control.sendall(json.dumps(result).encode() + b"\n")


def main() -> None:
    """Be the fork server, with the changes above."""
    torch_metas.put_off()
    from cloister.forkserver import child, process
    from cloister.process.sandbox.layers import Profile
    from cloister.service.process import Service
    from cloister.vault.process import Vault

    without = frozenset(Layer(name) for name in os.environ.get("CLOISTER_TEST_WITHOUT", "").split())
    load_model = child.load_model

    def load_and_look(*arguments: Any) -> Any:
        global weights_at
        made = load_model(*arguments)
        maps = Path("/proc/self/maps").read_text().splitlines()
        weights_at = int(next(line for line in maps if "cloister-weights" in line).split("-")[0], 16)
        return made

    child.load_model = load_and_look
    Vault.run = Service.run = _try  # type: ignore[method-assign, assignment]
    if without:
        child.Profile = lambda *given, **_: Profile(*given, without=without, allow_degraded=True)  # type: ignore[misc, assignment]
        child.enter_own = functools.partial(child.enter_own, without)
        process.leave_host = functools.partial(process.leave_host, without - {Layer.USER_NAMESPACE})
        if Layer.EMPTY_ROOT in without:
            process.empty_root = lambda: None
    process.serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    sys.modules["tests.redteam.inside"] = sys.modules["__main__"]
    main()
