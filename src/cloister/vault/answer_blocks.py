"""Where layers are private: blocks for an answer's keys and values in these layers, which the link's thread computes.
They lie behind the prompts' blocks in the cache. Only their first layers are written: memory is taken for these."""

from typing import Self

from cloister.compute.base import Begun, LinkAnswerer
from cloister.compute.host_cache import on_host
from cloister.compute.layout import BLOCK_TOKENS
from cloister.engine.runner import Runner
from cloister.engine.sequence import Sequence
from cloister.prefix.base import BlockPool

ANSWERS = 8  # times as many blocks as prompts have


class AnswerBlocks:
    def __init__(self, pool: BlockPool, first: int) -> None:
        self._pool, self._first = pool, first
        self._held: dict[Sequence, list[int]] = {}

    @classmethod
    def behind(cls, runner: Runner, layers: int) -> Self | None:
        if not layers or runner.cache is None:
            return None
        cache, first = on_host(runner.cache), runner.num_blocks
        pool = BlockPool(cache.blocks - first, lambda blocks: cache.wipe([first + block for block in blocks], layers))
        return cls(pool, first)

    def hold(self, several: list[Sequence]) -> bool:
        """Room for all tokens that these sequences may get, or for none."""
        if several[0] in self._held:
            return True
        taken = self._pool.allocate(sum(map(_blocks, several)))
        rest = iter(taken or ())
        if taken is not None:
            self._held |= {one: [next(rest) for _ in range(_blocks(one))] for one in several}
        return taken is not None

    def ever_hold(self, several: list[Sequence]) -> bool:
        return sum(map(_blocks, several)) <= self._pool.total

    def begin(self, sequence: Sequence, slot: int, answerer: LinkAnswerer) -> None:
        own = [self._first + block for block in self._held[sequence]]
        limit = sequence.limit - sequence.prompt_length
        answerer.begin(slot, Begun(sequence.layout, [*sequence.blocks.all, *own], sequence.tokens[-1], limit))

    def release(self, sequence: Sequence) -> None:
        self._pool.release(self._held.pop(sequence, ()))


def _blocks(sequence: Sequence) -> int:
    return -(-(sequence.limit - sequence.prompt_length) // BLOCK_TOKENS)
