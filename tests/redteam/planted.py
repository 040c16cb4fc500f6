"""A process that has secrets where it is told, and only there: `python planted.py SECRETS`, until its input ends.

Secrets come masked and are unmasked byte by byte at their places. It says as JSON at which address each is, and the
process id of a child that has some of its own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Callable

MASK = 0x5A
TOKEN_MASK = 0x5A5A
PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.malloc.restype = ctypes.c_void_p
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_kept: list[object] = []


def write(address: int, masked: bytes) -> int:
    place = (ctypes.c_uint8 * len(masked)).from_address(address)
    for number, byte in enumerate(masked):
        place[number] = byte ^ MASK
    return address


def mapped(*arguments: int, **options: int) -> int:
    """The address of a new mapping."""
    made = mmap.mmap(*arguments, **options)
    _kept.append(made)
    return ctypes.addressof(ctypes.c_char.from_buffer(made))


def file_of(pages: int) -> int:
    file = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as we do)
    file.write(b"x" * pages * PAGE)
    file.flush()
    _kept.append(file)
    return file.fileno()


def memory_file(pages: int) -> int:
    fd = os.memfd_create("cloister-planted")
    os.ftruncate(fd, pages * PAGE)
    return fd


def on_a_stack(masked: bytes) -> int:
    """Of a thread that goes on."""
    told: list[int] = []
    ready = threading.Event()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def compare(one: int, _: int) -> int:
        if not told:
            told.append(write(one, masked))
            ready.set()
            threading.Event().wait()
        return 0

    # qsort keeps what it merges, if it is little, on its stack.
    array = ctypes.create_string_buffer(2 * 64)
    threading.Thread(target=lambda: _libc.qsort(array, 2, 64, compare), daemon=True).start()
    ready.wait()
    return told[0]


def on_the_heap(masked: bytes) -> int:
    return write(_libc.malloc(64), masked)


def across_pages(masked: bytes) -> int:
    return write(mapped(-1, 2 * PAGE) + PAGE - 7, masked)


def across_mappings(masked: bytes) -> int:
    """Two that are side by side, for the second may only be read."""
    address = mapped(-1, 2 * PAGE)
    write(address + PAGE - 7, masked)
    assert _libc.mprotect(address + PAGE, PAGE, mmap.PROT_READ) == 0
    return address + PAGE - 7


def in_a_file_only(masked: bytes) -> None:
    """A memory file that is open, and that nobody maps."""
    with mmap.mmap(memory_file(1), PAGE) as file:
        for number, byte in enumerate(masked):
            file[number] = byte ^ MASK


PLACES: dict[str, Callable[[bytes], int]] = {
    "heap": on_the_heap,
    "stack": on_a_stack,
    "private": lambda masked: write(mapped(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), masked),
    "shared": lambda masked: write(mapped(-1, PAGE), masked),
    "the last bytes": lambda masked: write(mapped(-1, PAGE) + PAGE - len(masked), masked),
    "across pages": across_pages,
    "across mappings": across_mappings,
    "memory file": lambda masked: write(mapped(memory_file(3), 3 * PAGE) + PAGE, masked),
    "memory file, own page": lambda masked: write(mapped(memory_file(3), 3 * PAGE, mmap.MAP_PRIVATE) + PAGE, masked),
    "file": lambda masked: write(mapped(file_of(3), 3 * PAGE) + PAGE, masked),
    "file, own page": lambda masked: write(mapped(file_of(3), 3 * PAGE, mmap.MAP_PRIVATE) + PAGE, masked),
}


def main() -> None:
    given = json.loads(sys.argv[1])
    addresses = {name: PLACES[place](bytes.fromhex(masked)) for name, place, masked in given["secrets"]}
    _kept.append([token ^ TOKEN_MASK for token in given["list"]])
    numbers = {place: token ^ TOKEN_MASK for place, token in enumerate(given["ints"])}
    in_a_file_only(bytes.fromhex(given["unmapped"]))
    half, pages = bytes.fromhex(given["half"]), mapped(-1, 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    addresses["half"] = write(pages + PAGE - len(half), half)
    read, wrote = os.pipe()
    child = os.fork()
    if not child:
        _kept.append(tuple(numbers.values()))  # of ints that both have in one page
        write(pages + PAGE, bytes.fromhex(given["rest"]))  # in a page of its own, beside one that both have
        os.write(wrote, b"\n")
        os.close(wrote)
        sys.stdin.read()
        os._exit(0)
    os.read(read, 1)
    print(json.dumps({"addresses": addresses, "child": child}), flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
