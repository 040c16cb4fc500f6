"""A file in memory that can be sealed: then no one, not even its maker, can change or resize it. Imports no torch."""

import errno
import fcntl
import mmap
import os
from functools import cache
from pathlib import Path

from cloister.errors import SetupError
from cloister.link.memory import NOTHING, UNUSED, collapse, map_shared, mapped, unmap

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_NOEXEC_SEAL = 0x0008  # MFD_NOEXEC_SEAL, Linux 6.3


def create_memory_file(name: str) -> int:
    """An empty file that can be sealed and, where the kernel supports it, never executed. Not inherited by children."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        try:
            return os.memfd_create(name, flags | _NOEXEC_SEAL)
        except OSError as unknown:
            if unknown.errno != errno.EINVAL:
                raise
            return os.memfd_create(name, flags)
    except OSError as failure:
        hint = "Cloister needs Linux with memfd_create."
        raise SetupError(f"A memory file cannot be made: {failure.strerror}.", hint=hint) from failure


def seal(fd: int) -> None:
    """Forbid writing, growing, shrinking and further seals, and check that it is so."""
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    except OSError as failure:
        hint = "A process that still maps it for writing keeps it open; end it and start again."
        raise SetupError(f"A memory file cannot be sealed: {failure.strerror}.", hint=hint) from failure
    check_sealed(fd)


def check_sealed(fd: int) -> None:
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as failure:
        raise SetupError("A descriptor that should be a sealed memory file is none.") from failure
    if seals & SEALS != SEALS:
        raise SetupError("A memory file is not sealed: its content could still change.")


def reopen_read_only(fd: int) -> int:
    """Another descriptor of the same file that cannot write, seals or not. Older kernels map only such a one."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise SetupError(f"A memory file cannot be reopened: {failure.strerror}.", hint="Mount /proc.") from failure


@cache
def large_page() -> int:
    """Bytes of a page that one entry of the processor's second level maps; the ordinary page where there is none."""
    try:
        return int(Path("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return mmap.PAGESIZE


class ReadOnlyMapping:
    """The whole of a file, shared, where large pages can be mapped as such. The descriptor may be closed."""

    def __init__(self, fd: int, size: int) -> None:
        room = size + large_page()
        reserved = mapped(None, room, NOTHING, UNUSED)
        self.address = -(-reserved // large_page()) * large_page()
        self._whole = (reserved, room)
        try:
            map_shared(fd, size, mmap.PROT_READ, self.address)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        unmap(*self._whole)


def gather_into_large_pages(fd: int, size: int) -> bool:
    """Whether the kernel moved it: one fault instead of hundreds. What fills no large page stays where it is."""
    mapping = ReadOnlyMapping(fd, size)
    try:
        whole = size // large_page() * large_page()
        return whole > 0 and collapse(mapping.address, whole)
    finally:
        mapping.close()
