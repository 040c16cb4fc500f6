"""The addresses of links: nothing else comes to lie there, and they are used again."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import pytest

from cloister.errors import SetupError
from cloister.link import memory as link_memory
from cloister.link.memory import LinkMemory, LinkShape, Region, links

READ_ONLY, READ_WRITE = mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE
SIZE = mmap.PAGESIZE + 100


@pytest.fixture
def memory() -> Iterator[int]:
    with open(os.memfd_create("piece"), "r+b") as file:
        file.truncate(SIZE)
        yield file.fileno()


def mapped_at(address: int) -> tuple[str, str]:
    """Rights and name of the mapping that holds an address; nothing if there is none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            place, rights, _, _, _, *name = line.split(maxsplit=5)
            start, end = (int(border, 16) for border in place.split("-"))
            if start <= address < end:
                return rights, name[0].strip() if name else ""
    return "", ""


def test_links_lie_there_and_nowhere_else() -> None:
    link = LinkMemory(LinkShape(heads=2, dim=16, layers=1, capacity=4))
    pieces = link.shape.map(*link.service_descriptors, asks=True)
    assert {piece.address >> 32 for piece in pieces} == {links().upper_word}
    assert pieces[0].read(0, 4) == pieces[1].read(0, 4) == b"CLNK"
    for piece in pieces:
        piece.close()
    link.close()


def test_what_is_released_stays_taken_and_is_used_again(memory: int) -> None:
    own = Region()
    first, second = own.map(memory, SIZE, READ_WRITE), own.map(memory, SIZE, READ_ONLY)
    assert first >> 32 == second >> 32 == own.upper_word and abs(second - first) >= SIZE
    assert mapped_at(first)[0] == "rw-s" and mapped_at(second)[0] == "r--s"
    own.release(first, SIZE)
    assert mapped_at(first) == mapped_at((own.upper_word << 32) + link_memory.SIZE - 1) == ("---p", "")
    assert own.map(memory, SIZE, READ_ONLY) == first


def test_a_refusal_takes_no_addresses(memory: int) -> None:
    own = Region()
    read_only = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    with pytest.raises(PermissionError):
        own.map(read_only, SIZE, READ_WRITE)
    os.close(read_only)
    assert own.map(memory, SIZE, READ_ONLY) == own.upper_word << 32


def test_when_it_is_full_the_next_is_refused_in_words(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Region()
    monkeypatch.setattr(link_memory, "SIZE", 3 * mmap.PAGESIZE)
    own.map(memory, SIZE, READ_ONLY)
    with pytest.raises(SetupError, match="no addresses left"):
        own.map(memory, SIZE, READ_ONLY)
