"""The processor's cores that this process may use: fewer than the machine has under `taskset`, or in a container."""

import os


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not where only clients run
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
