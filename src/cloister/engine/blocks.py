"""The blocks of the paged KV cache: which are free, how many hold each of the others, and the seam for prefix reuse.

The pool stores no keys or values and knows neither sequences nor devices. A prefix cache decides by tenant and tokens
only, and never influences the order in which requests are served: a scheduler that prefers hits tells one tenant of
another's prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """`total` blocks with reference counts; a block is free again when its last holder releases it.

    `wipe` gets the blocks that are about to be free: what they held is a function of somebody's prompt.
    """

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
        """`count` blocks held once each, or None (and nothing taken) when too few are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._references[block] = 1
        return taken

    def retain(self, blocks: Iterable[int]) -> None:
        """Add a holder to blocks that are held already."""
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


class PrefixCache:
    """Keeps computed full blocks beyond the life of a sequence, under references of its own in the pool.

    This one keeps none: every sequence computes its own prompt.
    """

    def attach(self, pool: BlockPool, block_tokens: int) -> None:
        """Meet the pool; the engine calls this once, before anything else."""

    def match(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """Blocks holding the longest reusable prefix of `tokens`, whole blocks only, in order.

        They are retained in the pool for the caller, who releases them like its own and never writes to them.
        """
        return []

    def offer(self, tenant: str, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """These full blocks hold the keys and values of exactly these tokens; retain what is worth keeping.

        They are of a prompt's first segment alone (compute.layout.Layout), where keys and values are a function of the
        tokens. They are offered when computed, and again when their sequence leaves.
        """

    def evict(self, count: int) -> None:
        """The pool runs short: release blocks until `count` more are free, or as many as can be.

        A block that nobody else holds must be given up, or requests would wait for ever.
        """
