from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloister.errors import SetupError
from cloister.models.memory_file import (
    ReadOnlyMapping,
    check_sealed,
    create_memory_file,
    gather_into_large_pages,
    large_page,
    reopen_read_only,
    seal,
)
from tests.large_pages import in_large_pages, skip_unless_the_kernel_gives_large_pages

CONTENT = b"weights " * 1024


@pytest.fixture
def fd() -> Iterator[int]:
    made = create_memory_file("test")
    os.write(made, CONTENT)
    yield made
    os.close(made)


ATTEMPTS: dict[str, Callable[[int], object]] = {
    "write": lambda fd: os.pwrite(fd, b"x", 0),
    "append": lambda fd: os.pwrite(fd, b"x", len(CONTENT)),
    "grow": lambda fd: os.ftruncate(fd, 2 * len(CONTENT)),
    "shrink": lambda fd: os.ftruncate(fd, 1),
    "allocate": lambda fd: os.posix_fallocate(fd, 0, 2 * len(CONTENT)),
    "map writable": lambda fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE),
    "seal again": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_what_a_sealed_file_refuses_an_unsealed_one_allows(fd: int, attempt: Callable[[int], object]) -> None:
    other = create_memory_file("control")
    os.write(other, CONTENT)
    attempt(other)
    os.close(other)
    seal(fd)
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)  # a descriptor of one's own does not help either
    for descriptor in (fd, again):
        with pytest.raises(PermissionError):
            attempt(descriptor)
    assert os.pread(fd, 2 * len(CONTENT), 0) == CONTENT
    os.close(again)


def test_a_read_only_descriptor_cannot_write_even_unsealed(fd: int) -> None:
    reader = reopen_read_only(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(reader, b"x", 0)
    with pytest.raises(PermissionError):
        mmap.mmap(reader, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)
    assert os.pread(reader, len(CONTENT), 0) == CONTENT and not os.get_inheritable(reader)
    os.close(reader)


def test_a_file_that_someone_can_still_write_is_not_sealed(fd: int) -> None:
    writable = mmap.mmap(fd, 0)
    with pytest.raises(SetupError, match="cannot be sealed"):
        seal(fd)
    writable.close()
    seal(fd)


def test_every_seal_counts(fd: int, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="not sealed"):
        check_sealed(fd)
    for one in (fcntl.F_SEAL_WRITE, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK):
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, one)
        with pytest.raises(SetupError, match="not sealed"):
            check_sealed(fd)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
    check_sealed(fd)
    with (tmp_path / "plain").open("w") as plain, pytest.raises(SetupError, match="is none"):
        check_sealed(plain.fileno())


def test_content_in_large_pages_is_the_same_and_takes_few_faults() -> None:
    """A process that maps it afterwards sees the same bytes, and the kernel says that the pages are large."""
    skip_unless_the_kernel_gives_large_pages()
    size = 2 * large_page() + mmap.PAGESIZE
    content = os.urandom(mmap.PAGESIZE) * (size // mmap.PAGESIZE)
    made = create_memory_file("large")
    os.write(made, content)
    assert gather_into_large_pages(made, size)
    seal(made)
    fd = reopen_read_only(made)
    os.close(made)
    mapping = ReadOnlyMapping(fd, size)
    os.close(fd)
    assert ctypes.string_at(mapping.address, size) == content
    assert in_large_pages(mapping, size) == 2 * large_page()
    mapping.close()
