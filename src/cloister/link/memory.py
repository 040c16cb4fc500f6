"""A link's memory (the Python twin of link.h): two memfds of fixed size, each writable through one descriptor only."""

import ctypes
import fcntl
import mmap
import os
import platform
import struct
import threading
from ctypes import byref, c_int, c_long, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache

from cloister.errors import ProtocolError, SetupError

# aligned to its size, so that an address's upper word tells whether it lies inside; a large model's link: 8 MiB
SIZE = 1 << 32

_FAILED = c_void_p(-1).value
_MAP_NORESERVE = 0x4000
UNUSED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
_MAP_FIXED = 0x10
NOTHING = 0  # PROT_NONE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_libc.munmap.argtypes = [c_void_p, c_size_t]
_libc.madvise.argtypes = [c_void_p, c_size_t, c_int]
_MADV_COLLAPSE = 25  # Linux 6.1


def map_shared(descriptor: int, size: int, protection: int, address: int | None = None) -> int:
    return mapped(address, size, protection, mmap.MAP_SHARED | (_MAP_FIXED if address else 0), descriptor)


def unmap(address: int, size: int) -> None:
    _libc.munmap(address, size)


def collapse(address: int, size: int) -> bool:
    """Have the kernel put what is mapped there into large pages; whether it did."""
    return bool(_libc.madvise(address, size, _MADV_COLLAPSE) == 0)


class Region:
    """Addresses with nothing behind them. A forked process inherits them and what is mapped there."""

    def __init__(self) -> None:
        taken = mapped(None, 2 * SIZE, NOTHING, UNUSED)
        self._start = self._unused = -(-taken // SIZE) * SIZE
        if before := self._start - taken:
            unmap(taken, before)
        unmap(self._start + SIZE, SIZE - before)
        self._free: dict[int, list[int]] = {}

    @property
    def upper_word(self) -> int:
        return self._start >> 32

    def map(self, descriptor: int, size: int, protection: int) -> int:
        pages = _whole_pages(size)
        free = self._free.setdefault(pages, [])
        if not free:
            free.append(self._take(pages))
        map_shared(descriptor, size, protection, free[-1])
        return free.pop()

    def release(self, address: int, size: int) -> None:
        """Nothing lies there now; still no other mapping may come to lie there."""
        pages = _whole_pages(size)
        mapped(address, pages, NOTHING, UNUSED | _MAP_FIXED)
        self._free[pages].append(address)

    def _take(self, pages: int) -> int:
        address = self._unused
        if address + pages > self._start + SIZE:
            raise SetupError("A process has no addresses left for another link.", hint="Allow fewer with --max-vaults.")
        self._unused += pages
        return address


@cache
def links() -> Region:
    """This process's own; a process that forks others has it before."""
    return Region()


def _whole_pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def mapped(address: int | None, size: int, protection: int, flags: int, descriptor: int = -1) -> int:
    """By C's mmap: Python's own keeps a second descriptor, which a sealed process may not make."""
    found = _libc.mmap(address, size, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        raise OSError(ctypes.get_errno(), "memory cannot be mapped")
    return int(found)


MAGIC, VERSION = 0x4B4E4C43, 1
CLOSED = 0xFFFFFFFF
NUMBER_AT, WAITING_AT, CLOSED_AT, ROWS_AT = 64, 128, 132, 192
ASK_BYTES = 8
_HEAD = struct.Struct("<6I")
_FIXED_SIZE = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_WAIT, _WAKE, _EVERYONE = 0, 1, 2**31 - 1

_futex = ctypes.CDLL(None, use_errno=True).syscall
_futex.argtypes = [c_long, c_void_p, c_int, c_uint32, c_void_p, c_void_p, c_uint32]
_futex.restype = c_long


@dataclass(frozen=True, slots=True)
class LinkShape:
    """`capacity`: rows of one question."""

    heads: int
    dim: int
    layers: int
    capacity: int = 128

    @property
    def query_bytes(self) -> int:
        return 4 * self.heads * self.dim

    @property
    def part_bytes(self) -> int:
        """One row of an answer: A, m and γ of every head."""
        return 4 * self.heads * (self.dim + 2)

    @property
    def question_bytes(self) -> int:
        return ROWS_AT + self.capacity * (ASK_BYTES + self.query_bytes)

    @property
    def answer_bytes(self) -> int:
        return ROWS_AT + self.capacity * self.part_bytes

    def head(self) -> bytes:
        return _HEAD.pack(MAGIC, VERSION, self.heads, self.dim, self.layers, self.capacity)

    def map(self, question: int, answer: int, *, asks: bool) -> "tuple[Mapping, Mapping]":
        """In the region for links: a sealed process can sleep on no word elsewhere. Each side writes one piece."""
        pieces = (
            Mapping(question, self.question_bytes, writable=asks, region=links()),
            Mapping(answer, self.answer_bytes, writable=not asks, region=links()),
        )
        if any(piece.read(0, _HEAD.size) != self.head() for piece in pieces):
            for piece in pieces:
                piece.close()
            raise ProtocolError("A link was made for another model or another version.")
        return pieces


class Mapping:
    """Checked for its size. The descriptor may be closed afterwards."""

    def __init__(self, descriptor: int, size: int, *, writable: bool, region: Region | None = None) -> None:
        if os.fstat(descriptor).st_size != size:
            raise ProtocolError("A piece of shared memory has another size than it should.")
        protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
        place = map_shared if region is None else region.map
        self._region = region
        self.address = place(descriptor, size, protection)
        self.size = size

    def read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset + size > self.size:
            raise IndexError("outside the mapping")
        return ctypes.string_at(self.address + offset, size)

    def word(self, offset: int) -> c_uint32:
        if offset % 4 or not 0 <= offset <= self.size - 4:
            raise IndexError("outside the mapping")
        return c_uint32.from_address(self.address + offset)

    def view(self) -> memoryview:
        return memoryview((ctypes.c_char * self.size).from_address(self.address)).cast("B")

    def close(self) -> None:
        if self.address:
            release = unmap if self._region is None else self._region.release
            release(self.address, self.size)
            self.address = 0


class _Time(ctypes.Structure):
    _fields_ = (("seconds", c_long), ("nanoseconds", c_long))


def sleep_on(piece: Mapping, value: int, seconds: float | None = None) -> None:
    """Sleep while a piece's number is `value`. May return early. Other Python threads run meanwhile."""
    limit = None if seconds is None else byref(_Time(int(seconds), int(seconds % 1 * 1e9)))
    _futex(_SYS_FUTEX, piece.address + NUMBER_AT, _WAIT, value, limit, None, 0)


def wake(piece: Mapping) -> None:
    _futex(_SYS_FUTEX, piece.address + NUMBER_AT, _WAKE, _EVERYONE, None, None, 0)


_lock = threading.Lock()


def fence() -> None:
    """Order reads and writes for the other side: ARM needs the barriers of releasing and taking a lock (C11)."""
    with _lock:
        pass
    with _lock:
        pass


class _Direction:
    def __init__(self, name: str, shape: LinkShape, size: int) -> None:
        self.writable = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.writable, size)
        os.pwrite(self.writable, shape.head(), 0)
        # Of fixed size: a side that shrank it would kill the other at its next access.
        fcntl.fcntl(self.writable, fcntl.F_ADD_SEALS, _FIXED_SIZE)
        self.readonly = os.open(f"/proc/self/fd/{self.writable}", os.O_RDONLY | os.O_CLOEXEC)
        self.mapping = Mapping(self.writable, size, writable=True)


class LinkMemory:
    def __init__(self, shape: LinkShape) -> None:
        self.shape = shape
        self._question = _Direction("cloister-question", shape, shape.question_bytes)
        self._answer = _Direction("cloister-answer", shape, shape.answer_bytes)
        self._open = True

    @property
    def service_descriptors(self) -> tuple[int, int]:
        return self._question.writable, self._answer.readonly

    @property
    def vault_descriptors(self) -> tuple[int, int]:
        return self._question.readonly, self._answer.writable

    def close_down(self) -> None:
        """End the link for both sides: a service that waits returns at once, a vault's loop ends."""
        if self._open:
            self._question.mapping.word(CLOSED_AT).value = 1  # a vault that has not ended yet cannot undo this
            for each in (self._question, self._answer):
                each.mapping.word(NUMBER_AT).value = CLOSED  # where the next number would be
                wake(each.mapping)

    def close(self) -> None:
        if self._open:
            self.close_down()
            self._open = False
            for each in (self._question, self._answer):
                each.mapping.close()
                os.close(each.writable)
                os.close(each.readonly)
