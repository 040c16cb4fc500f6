"""Searching whole processes for a secret, in every form it could have taken.

Reading another process's memory (/proc/PID/mem) is root's right. Processes are stopped while they are searched, so that
nothing moves from a place not yet searched to one that was. A page of the machine's memory that several processes share
is searched once, in the first of them.
"""

import mmap
import os
import signal
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from cloister.audit.needles import Needles, Secret
from cloister.audit.objects import IntLists

PAGE = os.sysconf("SC_PAGESIZE")
PRESENT, SWAPPED, OF_FILE = np.uint64(1 << 63), np.uint64(1 << 62), np.uint64(1 << 61)
FRAME = np.uint64((1 << 55) - 1)
FRAMES = 1 << 28
AN_INT = "an int object"

_buffer = mmap.mmap(-1, 1 << 28, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
"""Used again and again: memory that is new is slow. Pages without content take no room."""


@dataclass(frozen=True)
class Stretch:
    """Pages side by side in a process, and side by side in the buffer."""

    begin: int
    end: int
    address: int


@dataclass
class Image:
    """What was read of a process."""

    data: memoryview
    stretches: list[Stretch]
    mappings: list[tuple[int, str]]

    def address(self, begin: int, end: int) -> int | None:
        """Where the process has these bytes of the buffer; None if they only meet there."""
        stretch = self.stretches[bisect_right(self.stretches, begin, key=lambda each: each.begin) - 1]
        return stretch.address + begin - stretch.begin if end <= stretch.end else None

    def name(self, address: int) -> str:
        return self.mappings[bisect_right(self.mappings, address, key=lambda each: each[0]) - 1][1]


@dataclass
class Search:
    """Looks through one process after the other."""

    named: Mapping[str, bytes]
    tokens: tuple[int, ...] = ()
    _searched: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FRAMES, np.bool_))

    def __post_init__(self) -> None:
        self._lists = IntLists(self.tokens) if self.tokens else None
        self._needles = Needles({**self.named, **({AN_INT: self._lists.first} if self._lists else {})})

    @classmethod
    def of(cls, secret: Secret) -> Self:
        return cls(secret.forms, secret.tokens)

    def look_into(self, pid: int) -> list[str]:
        """Where this process has what is looked for, as far as no earlier one shares that memory."""
        return [f"{name} at {address:#x} in {where}" for name, address, where in self.find(pid)]

    def find(self, pid: int) -> list[tuple[str, int, str]]:
        """The name of what was found, the address, and the mapping's name."""
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            image = self._read(pid, memory.fileno())
            found = [(name, image.address(begin, end)) for begin, end, name in self._needles.places(image.data)]
            places = [(name, address) for name, address in found if address is not None]
            if self._lists:
                self._lists.add(address for name, address in places if name == AN_INT)
                spots = (image.address(*place) for place in self._lists.pointers(image.data))
                lists = self._lists.among((spot for spot in spots if spot is not None), memory.fileno())
                places += [("tokens, as objects", address) for address in lists]
        return [(name, address, image.name(address)) for name, address in places if name != AN_INT]

    def _read(self, pid: int, memory: int) -> Image:
        global _buffer
        mappings, runs = self._runs(pid)
        room = sum(last - first for first, last in runs) * PAGE
        if room > len(_buffer):
            _buffer = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        view, used, stretches = memoryview(_buffer), 0, []
        for first, last in runs:
            at, end = first * PAGE, last * PAGE
            while at < end:
                begin = used
                used += _read_into(view[used : used + end - at], memory, at)
                if used > begin:
                    stretches.append(Stretch(begin, used, at))
                at += used - begin + PAGE  # what ended it is a page of the kernel's own
        return Image(view[:used], stretches, mappings)

    def _runs(self, pid: int) -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
        """All mappings; and the numbers of pages that were not searched yet, as stretches with a neighbour on either
        side: what we look for may lie across a border."""
        mappings, numbers, news = [], [], []
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
            for line in maps:
                place, rights, _, _, _, *name = line.split(maxsplit=5)
                start, end = (int(border, 16) for border in place.split("-"))
                if rights[0] != "r" or end > 1 << 63:
                    continue
                mappings.append((start, name[0].strip() if name else "anonymous"))
                pages = np.frombuffer(os.pread(pagemap.fileno(), (end - start) // PAGE * 8, start // PAGE * 8), "<u8")
                there = (pages & (PRESENT | SWAPPED)) != 0
                if name and name[0].startswith("/") and not name[0].startswith("/memfd:") and rights[3] == "p":
                    there &= (pages & OF_FILE) == 0  # what the disk holds, unchanged; what was written is our own page
                places = np.flatnonzero(there)
                numbers.append(places + start // PAGE)
                news.append(self._not_searched(pages[places]))
        return mappings, widened(np.concatenate(numbers), np.concatenate(news))

    def _not_searched(self, pages: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Which of these no process before had, nor a mapping before; from now on they count as searched."""
        frames = np.minimum(pages & FRAME, FRAMES - 1)
        frames[(pages & PRESENT) == 0] = 0
        new: npt.NDArray[np.bool_] = ~self._searched[frames]
        self._searched[frames] = True
        self._searched[[0, -1]] = False  # those whose number we do not know, and those too large for the table
        return new


def _read_into(view: memoryview, memory: int, address: int) -> int:
    """How many bytes there were to read, up to the first page that cannot be read."""
    done = 0
    with suppress(OSError):
        while done < len(view) and (count := os.preadv(memory, [view[done:]], address + done)):
            done += count
    return done


def widened(numbers: npt.NDArray[np.int64], new: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """From which page up to which: the new ones and, where they are there, their neighbours."""
    beside = np.diff(numbers) == 1
    wide = new.copy()
    wide[:-1] |= new[1:] & beside
    wide[1:] |= new[:-1] & beside
    chosen = numbers[wide]
    breaks = np.flatnonzero(np.diff(chosen) != 1)
    firsts, lasts = np.concatenate((chosen[:1], chosen[breaks + 1])), np.concatenate((chosen[breaks], chosen[-1:]))
    return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """None of these processes runs meanwhile."""
    halted = list(pids)
    for pid in halted:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(halted):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def memory_files_of(pid: int) -> dict[str, bytes]:
    """What the memory files hold that this process has open, the weights excepted: those the fork server maps."""
    contents = {}
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if (name := os.readlink(each)).startswith("/memfd:") and "weights" not in name:
                contents[f"{name}, descriptor {each.name}"] = each.read_bytes()
    return contents


def start_of(pid: int) -> bytes:
    """A process's arguments and environment."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
