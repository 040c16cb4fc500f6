"""Forbidden things, tried in earnest. Each returns when it succeeded and raises OSError when it was refused."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import socket
import threading
from pathlib import Path
from typing import Any

from cloister.process.sandbox.kernel import prctl, syscall

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
GROWSDOWN = 0x100


def _refused() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def map_memory(protection: int, flags: int, size: int = mmap.PAGESIZE) -> int:
    address = _libc.mmap(None, size, protection, flags, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise _refused()
    return int(address)


def open_internet_socket(_: Any) -> None:
    socket.socket(socket.AF_INET).close()


def open_local_socket(_: Any) -> None:
    socket.socket(socket.AF_UNIX).close()


def make_socket_pair(_: Any) -> None:
    socket.socketpair()


def connect(descriptor: int) -> None:
    address = b"\x01\x00\x00outside"
    syscall("connect", descriptor, address, len(address))


def listen(descriptor: int) -> None:
    syscall("listen", descriptor, 1)


def send_to_an_address(descriptor: int) -> None:
    address = b"\x01\x00\x00outside"
    syscall("sendto", descriptor, b"x", 1, 0, address, len(address))


def send_message(descriptor: int) -> None:
    socket.socket(fileno=descriptor).sendmsg([b"x"])


def receive_message(descriptor: int) -> None:
    socket.socket(fileno=descriptor).recvmsg(1, 16)


def open_for_reading(_: Any) -> None:
    os.close(os.open("/", os.O_RDONLY))


def open_for_writing(_: Any) -> None:
    os.close(os.open("/file", os.O_WRONLY | os.O_CREAT))


def write_file(_: Any) -> None:
    Path("/file").write_text("x")


def write_to_open_file(descriptor: int) -> None:
    os.write(descriptor, b"x")


def grow_open_file(descriptor: int) -> None:
    os.ftruncate(descriptor, 1 << 20)


def make_folder(_: Any) -> None:
    os.mkdir("/folder")


def fork(_: Any) -> None:
    if os.fork() == 0:
        os._exit(0)


def fork_by_raw_call(_: Any) -> None:
    if syscall("clone", 17, 0, 0, 0, 0) == 0:
        os._exit(0)


def fork_by_clone3(_: Any) -> None:
    arguments = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
    if syscall("clone3", ctypes.byref(arguments), ctypes.sizeof(arguments)) == 0:
        os._exit(0)


def start_thread(_: Any) -> None:
    try:
        threading.Thread(target=int).start()
    except RuntimeError as error:
        raise PermissionError(1, "no thread") from error


def execute(_: Any) -> None:
    os.execv("/bin/true", ["true"])


def spawn(_: Any) -> None:
    os.posix_spawn("/bin/true", ["true"], {})


def trace(_: Any) -> None:
    syscall("ptrace", 16, 99, 0, 0)


def read_other_memory(_: Any) -> None:
    syscall("process_vm_readv", 99, 0, 0, 0, 0, 0)


def signal_everyone(_: Any) -> None:
    os.kill(-1, 0)


def signal_another(_: Any) -> None:
    os.kill(99, 0)


def signal_another_thread_group(_: Any) -> None:
    syscall("tgkill", 99, 99, 0)


def signal_parent(_: Any) -> None:
    if not os.getppid():
        raise ProcessLookupError(3, "the parent has no number here")
    os.kill(os.getppid(), 0)


def map_executable(_: Any) -> None:
    map_memory(mmap.PROT_READ | mmap.PROT_EXEC, PRIVATE_ANONYMOUS)


def make_executable(_: Any) -> None:
    address = map_memory(mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS)
    if _libc.mprotect(address, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise _refused()


def map_uncounted_shared(_: Any) -> None:
    map_memory(mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)


def map_uncounted_growing(_: Any) -> None:
    map_memory(mmap.PROT_READ | mmap.PROT_WRITE, PRIVATE_ANONYMOUS | GROWSDOWN)


def create_memory_file(_: Any) -> None:
    os.close(os.memfd_create("x"))


def create_shared_memory(_: Any) -> None:
    syscall("shmget", 0, 4096, 0o1600)


def become_root(_: Any) -> None:
    os.setuid(0)


def mount(_: Any) -> None:
    syscall("mount", b"none", b"/", b"tmpfs", 0, None)


def new_namespace(_: Any) -> None:
    syscall("unshare", 0x10000000)


def enter_namespace(descriptor: int) -> None:
    syscall("setns", descriptor, 0)


def change_root(_: Any) -> None:
    os.chroot("/")


def use_ring(_: Any) -> None:
    os.close(syscall("io_uring_setup", 1, ctypes.byref((ctypes.c_char * 120)())))


def use_bpf(_: Any) -> None:
    syscall("bpf", 0, ctypes.byref((ctypes.c_char * 120)()), 120)


def use_faults(_: Any) -> None:
    os.close(syscall("userfaultfd", 1))


def use_counters(_: Any) -> None:
    os.close(syscall("perf_event_open", ctypes.byref((ctypes.c_char * 128)()), 0, -1, -1, 0))


def use_keys(_: Any) -> None:
    syscall("keyctl", 0, -3, 0)


def get_handle_of_process(_: Any) -> None:
    os.close(os.pidfd_open(os.getpid()))


def load_module(_: Any) -> None:
    syscall("init_module", None, 0, None)


def become_dumpable(_: Any) -> None:
    prctl(4, 1)


def set_limit(_: Any) -> None:
    lower_than_any = (ctypes.c_uint64 * 2)(4096, 4096)
    syscall("prlimit64", 0, resource.RLIMIT_STACK, ctypes.byref(lower_than_any), None)


def old_system_call(_: Any) -> None:
    """The x32 numbers, which a filter that only compares numbers would let through."""
    ctypes.CDLL(None).syscall(0x40000000 | 39)
