"""What could keep a prompt besides the memory of processes: files, swap, journals, the kernel's log, and bytes that no
one has taken yet from a socket or a pipe."""

import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG

from cloister.audit.needles import Bytes

SWAPS, KERNEL_LOG = Path("/proc/swaps"), Path("/dev/kmsg")
JOURNAL = ("journalctl", "--no-pager", "--output=export")
NO_DISK = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "efivarfs", "fusectl"),
    *("hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs", "rpc_pipefs"),
}
"""Kinds of file systems whose files are the kernel's own words."""
PIECE, OVERLAP = 1 << 26, 1 << 10
_UNREAD = 1 << 20
_GETFD, _NONBLOCK, _PIPE_SIZE = 438, 2, 1031
_libc = ctypes.CDLL(None, use_errno=True)
Found = tuple[str, Bytes]
"""Where, and what is there."""


def disks(pid: int) -> list[Path]:
    """Where file systems are mounted for this process, as this one sees them. All users' temporary folders are there,
    and so is a tier of a cache, should a node have one on a disk."""
    root = Path(f"/proc/{pid}/root")
    mounts = [line.split(" - ") for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    kept = [left.split()[4] for left, right in mounts if right.split()[0] not in NO_DISK]
    return [root / place.encode().decode("unicode_escape").lstrip("/") for place in dict.fromkeys(kept)]


def changed_since(moment: float, folders: Iterable[Path]) -> Iterator[Path]:
    """Regular files, each once. What is mounted below a folder is no part of it."""
    seen = set[tuple[int, int]]()
    for folder in folders:
        with suppress(OSError):
            device, left = folder.stat().st_dev, [str(folder)]
            while left:
                with suppress(OSError), os.scandir(left.pop()) as entries:
                    for entry in entries:
                        with suppress(OSError):
                            status = entry.stat(follow_symlinks=False)
                            place, changed = (status.st_dev, status.st_ino), max(status.st_mtime, status.st_ctime)
                            if entry.is_dir(follow_symlinks=False):
                                left += [entry.path] if status.st_dev == device else []
                            elif S_ISREG(status.st_mode) and changed >= moment and place not in seen:
                                seen.add(place)
                                yield Path(entry.path)


def pieces(path: Path) -> Iterator[Bytes]:
    """Of a file of any size. What lies across a border is whole in one of them."""
    with suppress(OSError), path.open("rb", 0) as file:
        before = b""
        while piece := file.read(PIECE):
            yield before + piece
            before = piece[-OVERLAP:]


def swapped() -> Iterator[Path]:
    """Files and partitions with pages that were written out, also of processes that are gone."""
    with suppress(OSError):
        yield from (Path(line.split()[0]) for line in SWAPS.read_text().splitlines()[1:])


def logged(moment: float) -> Iterator[Found]:
    """Journals are packed on the disk: the search has to read what they say. The kernel's log is in its memory."""
    if shutil.which(JOURNAL[0]):
        with suppress(OSError):
            said = subprocess.run([*JOURNAL, f"--since=@{int(moment)}"], capture_output=True, check=False)
            yield "the journal", said.stdout
    with suppress(OSError):
        log = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(log, "rb", 0) as file, suppress(BlockingIOError):
            while line := os.read(file.fileno(), 1 << 13):
                yield "the kernel's log", line


def unread(pid: int) -> Iterator[Found]:
    """Bytes that wait in this process's sockets and pipes. They are left where they are."""
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    kind = os.readlink(each).partition(":")[0]
                    if kind == "socket":
                        yield f"socket {each.name}", _waiting_in_socket(process, int(each.name))
                    elif kind == "pipe":
                        yield f"pipe {each.name}", _waiting_in_pipe(each)
        finally:
            os.close(process)


def _waiting_in_socket(process: int, number: int) -> bytes:
    descriptor = _libc.syscall(_GETFD, process, number, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    with socket.socket(fileno=descriptor) as taken:
        return taken.recv(_UNREAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)


def _waiting_in_pipe(path: Path) -> bytes:
    import fcntl

    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mine, copy = os.pipe()
    try:
        fcntl.fcntl(copy, _PIPE_SIZE, _UNREAD)
        count = _libc.tee(source, copy, ctypes.c_size_t(_UNREAD), _NONBLOCK)
        return os.read(mine, count) if count > 0 else b""
    finally:
        for each in (source, mine, copy):
            os.close(each)
