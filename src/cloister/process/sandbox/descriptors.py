"""Open descriptors: a sealed process has those it was told to keep, and /dev/null for the three standard ones."""

from __future__ import annotations

import os
from collections.abc import Collection

from cloister.process.sandbox.kernel import syscall

_LAST = 2**32 - 1
_null: int | None = None


def hold_null() -> None:
    """Opens /dev/null while there is a /dev, for `silence_standard` in a forked child."""
    global _null
    if _null is None:
        _null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)


def silence_standard(keep: Collection[int]) -> None:
    """Standard input, output and error become /dev/null, but for those to keep."""
    if _null is None:
        hold_null()
    assert _null is not None
    for standard in (0, 1, 2):
        if standard not in keep:
            os.dup2(_null, standard, inheritable=False)


def close_all_but(keep: Collection[int]) -> None:
    """Closes every other descriptor, whoever opened it."""
    gap = 0
    for kept in (*sorted(set(keep)), _LAST + 1):
        if kept > gap:
            syscall("close_range", gap, kept - 1, 0)
        gap = kept + 1
