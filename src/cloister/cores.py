"""The processor's cores that this process may use: fewer than the machine has under `taskset`, or in a container."""

from __future__ import annotations

import os


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))
