"""Searching whole processes for a secret, in every form it could have taken.

Reading another process's memory (/proc/PID/mem) is root's right. Processes are stopped while they are searched, so that
nothing moves from a place not yet searched to one that was. A page of the machine's memory that several processes share
is searched once, in the first of them; one that is as it was before the secret existed is not searched.
"""

from __future__ import annotations

import os
import signal
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

FRAGMENT = 12
PAGE = os.sysconf("SC_PAGESIZE")
PRESENT, SWAPPED, OF_FILE = np.uint64(1 << 63), np.uint64(1 << 62), np.uint64(1 << 61)
FRAME = np.uint64((1 << 55) - 1)
FRAMES = 1 << 28


@dataclass(frozen=True)
class Secret:
    """A text and some token ids in a row that only it has.

    The text's halves stand for it, so that a copy whose beginning or end was overwritten is found too.
    """

    text: str
    tokens: tuple[int, ...]

    @property
    def needles(self) -> dict[str, bytes]:
        """What to look for; without zeros at the end, which memory is full of."""
        first, last = self.text[:FRAGMENT], self.text[-FRAGMENT:]
        needles = {
            "text, first half": first.encode(),
            "text, last half": last.encode(),
            "text, backwards": self.text[::-1][:FRAGMENT].encode(),
            "UTF-16, first half": first.encode("utf-16-le"),
            "UTF-16, last half": last.encode("utf-16-le"),
            "UTF-32, last half": last.encode("utf-32-le"),
            "tokens, packed": b"".join(msgspec.msgpack.encode(one) for one in self.tokens),
            "tokens, as text": ",".join(map(str, self.tokens)).encode(),
        }
        return {form: needle.rstrip(b"\0") for form, needle in needles.items()}

    def found_in(self, data: bytes) -> list[str]:
        """In which forms these bytes hold it."""
        forms = [form for form, needle in self.needles.items() if needle in data]
        for size, kind in ((4, "i"), (8, "q")):
            ids = struct.pack(f"<{len(self.tokens)}{kind}", *self.tokens).rstrip(b"\0")
            forms += [f"tokens, {size} bytes each"] if ids in data else []
        return forms


@dataclass
class Search:
    """Looks through one process after the other."""

    secret: Secret
    older: Collection[int] = ()
    """Pages, by their hashes, as they were before there was this secret."""
    seen: set[int] = field(default_factory=set)
    """All pages of this search, by their hashes."""
    _searched: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(FRAMES, np.bool_))

    def look_into(self, pid: int) -> list[str]:
        """Where this process has the secret and in which form, as far as no earlier one shares that memory."""
        pieces = self._read(pid)
        return [
            f"{form} at {address:#x} in {name}" for address, name, data in pieces for form in self.secret.found_in(data)
        ] + list(_find_objects(pieces, self.secret.tokens))

    def _read(self, pid: int) -> list[tuple[int, str, bytes]]:
        pieces = []
        with (
            open(f"/proc/{pid}/maps") as maps,
            open(f"/proc/{pid}/mem", "rb", 0) as memory,
            open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap,
        ):
            for line in maps:
                place, rights, _, _, _, *name = line.split(maxsplit=5)
                start, end = (int(border, 16) for border in place.split("-"))
                if rights[0] != "r" or end > 1 << 63:
                    continue
                pages = np.frombuffer(os.pread(pagemap.fileno(), (end - start) // PAGE * 8, start // PAGE * 8), "<u8")
                there = (pages & (PRESENT | SWAPPED)) != 0
                if name and name[0].startswith("/") and not name[0].startswith("/memfd:") and rights[3] == "p":
                    there &= (pages & OF_FILE) == 0  # what the disk holds, unchanged; what was written is our own page
                frames = np.minimum(pages & FRAME, FRAMES - 1)
                new = there & ~self._searched[frames]
                self._searched[frames] = there
                self._searched[[0, -1]] = False  # a number we were not told, and all that are too large for the table
                for first, last in _runs(new, there):
                    with suppress(OSError):  # pages of the kernel's own
                        data = os.pread(memory.fileno(), (last - first) * PAGE, start + first * PAGE)
                        for offset, written in self._written(data):
                            place = start + first * PAGE + offset
                            pieces.append((place, name[0].strip() if name else "anonymous", written))
        return sorted(pieces)

    def _written(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Stretches of pages that are neither old nor all zeros, as most of a reserved cache is. No needle begins or
        ends with a zero, and what lies across a border was written on either side of it."""
        pages = np.frombuffer(data[: len(data) // PAGE * PAGE], "<u8").reshape(-1, PAGE // 8).any(axis=1)
        for number in np.flatnonzero(pages).tolist():
            known = hash(data[number * PAGE : (number + 1) * PAGE])
            self.seen.add(known)
            pages[number] = known not in self.older
        for first, last in _stretches(pages):
            yield first * PAGE, data[first * PAGE : last * PAGE]


def _runs(new: npt.NDArray[np.bool_], there: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Stretches of new pages, with a neighbour on either side: what we look for may lie across a border."""
    wide = new.copy()
    wide[:-1] |= new[1:]
    wide[1:] |= new[:-1]
    wide &= there
    return _stretches(wide)


def _stretches(marked: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], marked.view(np.int8), [0]))))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _find_objects(pieces: list[tuple[int, str, bytes]], tokens: tuple[int, ...]) -> Iterator[str]:
    """The tokens as a Python list or tuple: pointers side by side to int objects of these values.

    An int object is a reference count, a type, a size (1) and the value.
    """
    assert all(256 < token < 1 << 30 for token in tokens), "small ints are shared by all, large ones have two digits"
    if not pieces:
        return
    starts = [address for address, _, _ in pieces]

    def read(address: int, size: int) -> bytes:
        number = bisect_right(starts, address) - 1
        if number < 0:
            return b""
        offset = address - starts[number]
        return pieces[number][2][offset : offset + size]

    firsts = np.concatenate([_ints(base, data, tokens[0]) for base, _, data in pieces])
    hashed = np.zeros(1 << 16, np.bool_)
    hashed[firsts >> 4 & 0xFFFF] = True
    expected = [struct.pack("<QI", 1, token) for token in tokens]
    for base, name, data in pieces:
        words = np.frombuffer(data[: len(data) // 8 * 8], "<u8")
        likely = np.flatnonzero(hashed[words >> 4 & 0xFFFF])
        for place in (8 * likely[np.isin(words[likely], firsts)]).tolist():
            pointers = struct.iter_unpack("<Q", data[place : place + 8 * len(tokens)][: (len(data) - place) // 8 * 8])
            if [read(one, 28)[16:] for (one,) in pointers] == expected:
                yield f"tokens, as objects at {base + place:#x} in {name}"


def _ints(base: int, data: bytes, value: int) -> npt.NDArray[np.uint64]:
    """Addresses of int objects of this value."""
    words = np.frombuffer(data[: len(data) // 8 * 8], "<u4")
    hits = 2 * np.flatnonzero(words[::2] == value)
    hits = hits[(hits >= 6) & (words[hits - 2] == 1) & (words[hits - 1] == 0)]
    return (base + 4 * hits - 24).astype(np.uint64)


@contextmanager
def stopped(pids: Iterable[int]) -> Iterator[None]:
    """Nothing of these processes moves."""
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


def told_at_start(pid: int) -> bytes:
    """A process's arguments and environment."""
    return Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
