"""Which run goes on where another ends: one table for all runs of the tree, four bytes for each of its slots.

Open addressing with linear probing. The hash (keyed by the interpreter, as of any `bytes`) says where to begin; what is
found there is compared by parent, owner and content, so no two pages are ever taken for each other.
"""

from __future__ import annotations

from array import array

from cloister.prefix.runs import NONE, Runs

_LEAST = 64


class Children:
    """Every run of `runs` that has a parent. A run is taken out before its parent, owner or first page changes."""

    def __init__(self, runs: Runs, expected: int = 0) -> None:
        self._runs = runs
        self._count = 0
        size = _LEAST
        while _is_full(expected, size):
            size *= 2
        self._slots = array("i", [NONE]) * size

    def find(self, parent: int, seat: int, first: bytes) -> int:
        """The run of this owner below `parent` that begins with this page, or NONE."""
        runs, slots = self._runs, self._slots
        mask = len(slots) - 1
        at = hash((parent, seat, first)) & mask
        while (run := slots[at]) != NONE:
            if runs.parent[run] == parent and runs.owner[run] == seat and runs.content[run][: runs.page] == first:
                return run
            at = at + 1 & mask
        return NONE

    def add(self, run: int) -> None:
        self._count += 1
        if _is_full(self._count, len(self._slots)):
            self._grow()
        self._put(run)

    def remove(self, run: int) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        at = self._home(run)
        while slots[at] != run:
            assert slots[at] != NONE
            at = at + 1 & mask
        self._count -= 1
        free = at
        while (other := slots[at := at + 1 & mask]) != NONE:  # no search may end before what lies behind it
            if at - self._home(other) & mask >= at - free & mask:
                slots[free], free = other, at
        slots[free] = NONE

    def _home(self, run: int) -> int:
        runs = self._runs
        return hash((runs.parent[run], runs.owner[run], runs.first(run))) & len(self._slots) - 1

    def _put(self, run: int) -> None:
        slots, mask = self._slots, len(self._slots) - 1
        at = self._home(run)
        while slots[at] != NONE:
            at = at + 1 & mask
        slots[at] = run

    def _grow(self) -> None:
        runs = [run for run in self._slots if run != NONE]
        self._slots = array("i", [NONE]) * (2 * len(self._slots))
        for run in runs:
            self._put(run)


def _is_full(count: int, slots: int) -> bool:
    """Whether searches would probe too far; there is always a free slot to end at."""
    return 4 * count > 3 * slots
