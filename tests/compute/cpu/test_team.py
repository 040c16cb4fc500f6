"""The team of threads: however many take part, the numbers are the same, and who is not to take part does nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In a process of its own: the team, once started, belongs to a process for good.
_PROGRAM = """
import os, resource, sys, time
import torch
from cloister.compute.cpu.native import NativeKernels

kernels = NativeKernels(torch.bfloat16, threads=3)
torch.manual_seed(0)
packed = kernels.pack(torch.randn(4096, 256))
x = torch.randn(64, 256)
expected = kernels.linear(x, packed)


def helpers_seconds():
    own = time.thread_time()
    return sum(os.times()[:2]) - own


for cores in (1, 2, 3, 1, 3):
    kernels.use_cores(cores)
    assert torch.equal(kernels.linear(x, packed), expected), cores
kernels.use_cores(1)
time.sleep(0.3)  # helpers spin for a moment before they sleep
before = helpers_seconds()
for _ in range(60):
    kernels.linear(x, packed)
resting = helpers_seconds() - before
kernels.start_team(3)
before = helpers_seconds()
for _ in range(100_000):
    kernels.linear(x, packed)
    if (working := helpers_seconds() - before) > 0.2:
        break
print(resting, working)
"""


def test_fewer_members_compute_the_same_and_the_others_rest() -> None:
    """A process that is to have its whole team says so: a fork inherits what its parent allowed itself."""
    if sys.platform != "linux" or not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted the way Linux does")
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    resting, working = (float(number) for number in done.stdout.split())
    assert resting <= 0.05 and working > 0.2  # processor time, in clock ticks of 10 ms
