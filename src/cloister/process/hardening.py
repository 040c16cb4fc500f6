"""What every process does first: set its name, forbid core dumps, and keep its data out of error messages."""

import ctypes
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import TracebackType
from typing import Any

from cloister.errors import SetupError, where_raised
from cloister.process.log_lines import begin_logging

PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
PR_SET_DUMPABLE = 4
PR_SET_NAME = 15
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they ask a process to end
log = logging.getLogger("cloister")

# Python's own allocator would keep the first as it is, a thread's cache the second.
_FREED_SIZES = (200, 600, 4_000, 30_000)
_FREED_PIECE = 16  # more than glibc may leave of a block

# Freed memory is overwritten at once, so that what passed through does not linger: every allocation of Python's is
# malloc's, none waits in a thread's cache, and free() fills what it takes back, but perhaps its last eight bytes. This
# is true of glibc's malloc alone. Str, bytes, lists and ints lean on it, numpy's arrays by numpy_memory.py. Tensors
# must not: torch's wheels for ARM allocate them by mimalloc (compute/layout.token_tensor).
WIPE_FREED_MEMORY = {
    "PYTHONMALLOC": "malloc",
    "GLIBC_TUNABLES": "glibc.malloc.perturb=165:glibc.malloc.tcache_count=0:glibc.malloc.hugetlb=1",
}


def begin_child(role: str) -> socket.socket:
    """Before heavy imports: named, hardened, and tied to its parent. Returns its end of the socket to it."""
    _begin(role, forked=False)
    return socket.socket(fileno=_lowest(int(sys.argv[1])))


def _lowest(descriptor: int) -> int:
    """A parent with many files open passes a number above the limit that a sandbox sets for its process."""
    lowest = os.dup(descriptor)
    kept, closed = sorted((lowest, descriptor))
    os.close(closed)
    return kept


def begin_forked(role: str, control: int, parent: int) -> socket.socket:
    _begin(role, forked=True)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we were tied to it
    return socket.socket(fileno=control)


def _begin(role: str, *, forked: bool) -> None:
    for number in ENDING:  # a terminal and a service manager send them to all; the parent decides
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    name_process(role, forked=forked)
    begin_logging(role)
    hide_tracebacks()
    forbid_core_dumps()
    die_with_parent()


@contextmanager
def signals_held() -> Iterator[None]:
    """A process that is started meanwhile handles ENDING when it is ready to: before, Python prints a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_interrupts() -> Iterator[None]:
    """As Ctrl-C does. Signals that are handled or ignored stay so; threads beside the main one handle none."""
    caught = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        caught = []
    for number in caught:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def forbid_core_dumps() -> None:
    """No core file, and no other process of this user may read our memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)


def check_freed_memory() -> None:
    """SetupError unless what Python frees is overwritten: where another malloc was put before glibc's, say."""
    for size in _FREED_SIZES:
        content = os.urandom(size)
        left = ctypes.create_string_buffer(size)
        held = bytearray(content)
        address = ctypes.addressof(ctypes.c_char.from_buffer(held))
        del held
        ctypes.memmove(left, address, size)
        if any(content[at : at + _FREED_PIECE] in left.raw for at in range(0, size - _FREED_PIECE, _FREED_PIECE)):
            raise SetupError(
                "Memory that is freed is not overwritten here, so prompts would stay in it.",
                hint="Use glibc's malloc: start without LD_PRELOAD, and on a system with glibc.",
            )


def give_back_freed_memory() -> None:
    with suppress(AttributeError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


def die_with_parent() -> bool:
    """Whether the kernel confirms it. Changing ids or capabilities clears this: set it again afterwards."""
    libc, signal_set = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(signal_set), 0, 0, 0)
    return signal_set.value == signal.SIGKILL


def name_process(role: str, *, forked: bool = False) -> None:
    """`cl-` and the role, at most 15 bytes. A `forked` process's command line is written over."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, f"cl-{role}".encode(), 0, 0, 0)
    start, end = _command_line()
    if forked and start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, f"cloister {role}".encode(), min(len(role) + 9, end - start - 1))


@cache
def _command_line() -> tuple[int, int]:
    """Its addresses, read while there is a /proc (proc(5): arg_start, arg_end); 0 where the kernel hides them."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return int(fields[45]), int(fields[46])
    except OSError:
        return 0, 0


def hide_tracebacks() -> None:
    """Nor those of threads, and of what fails while an object is freed."""

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            log.critical("Ended by %s.", where_raised(error))

    def unraisable(found: Any) -> None:
        if isinstance(found.exc_value, Exception):
            log.error("Unexpected %s.", where_raised(found.exc_value))

    sys.excepthook = hook
    threading.excepthook = unraisable
    sys.unraisablehook = unraisable
