"""A small array of numpy's is overwritten when it is freed; without what we tell numpy it stays."""

from __future__ import annotations

from cloister.process.hardening import WIPE_FREED_MEMORY
from tests.process.test_hardening import run

LEFT = """
import ctypes, os, sys
import numpy as np
from cloister.process.numpy_memory import use_pythons_memory

def left(count):
    array = np.arange(1000, 1000 + count)
    address = array.ctypes.data
    del array
    return sum(each == 1000 + place for place, each in enumerate((ctypes.c_int64 * count).from_address(address)))

before = np.arange(50)
print(left(100), end=" ", flush=True)
use_pythons_memory()
use_pythons_memory()
print(left(1), left(100), left(126), left(3000), end=" ", flush=True)
if not os.fork():
    print(left(100), flush=True)
    os._exit(0)
os.wait()
del before
"""


def test_freed_arrays_are_overwritten_in_a_process_and_its_forks() -> None:
    kept, *after = map(int, run(LEFT, WIPE_FREED_MEMORY).stdout.split())
    assert kept == 100, "the control: numpy keeps a small array's memory as it was"
    assert after == [0] * 5
