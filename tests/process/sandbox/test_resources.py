"""Measured without /proc, checked against /proc."""

from __future__ import annotations

import mmap
import resource

from cloister.process.sandbox.resources import data_size, machine_has_swap


def by_proc() -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmData")).split()[1]) << 10


def test_data_size_is_what_the_kernel_counts() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    assert abs(data_size() - by_proc()) <= 1 << 20
    block = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert abs(data_size() - by_proc()) <= 1 << 20
    grown = data_size()
    block.close()
    assert grown - data_size() >= 255 << 20
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_swap_is_what_the_kernel_lists() -> None:
    with open("/proc/swaps") as file:
        assert machine_has_swap() == (len(file.readlines()) > 1)
