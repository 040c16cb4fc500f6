"""Which blocks of the paged KV cache are free, and how many hold each of the others.

The pool counts; it stores no keys or values and knows neither sequences nor devices.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """`total` blocks with reference counts; a block is free again when its last holder releases it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many hold this block."""
        return self._references[block]

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks held once each, or None (and nothing taken) when there are not so many."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Hold blocks once more that somebody already holds."""
        for block in blocks:
            if self._references[block] == 0:
                raise RuntimeError(f"Block {block} is free and cannot be retained.")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Give up one hold on each block."""
        for block in blocks:
            if self._references[block] == 0:
                raise RuntimeError(f"Block {block} is already free.")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)
