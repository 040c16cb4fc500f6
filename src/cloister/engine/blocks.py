from __future__ import annotations

from collections.abc import Callable, Iterable


class BlockPool:
    """Reference counts of the paged KV cache's blocks. `wipe` gets a block when its last reference is released."""

    def __init__(self, total: int, wipe: Callable[[list[int]], None] = lambda _: None) -> None:
        self.total = total
        self._wipe = wipe
        self._free = list(range(total - 1, -1, -1))
        self._references = [0] * total

    @property
    def free(self) -> int:
        return len(self._free)

    def references(self, block: int) -> int:
        return self._references[block]

    def allocate(self, count: int) -> list[int] | None:
        """None if too few are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            if self._references[block] == 0:
                raise RuntimeError(f"Block {block} is free and cannot be retained.")
            self._references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        ended: list[int] = []
        for block in blocks:
            if self._references[block] == 0:
                raise RuntimeError(f"Block {block} is already free.")
            self._references[block] -= 1
            if self._references[block] == 0:
                ended.append(block)
        if ended:
            self._wipe(ended)
            self._free += ended
