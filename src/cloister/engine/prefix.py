"""The seam for prefix reuse: who may be lent blocks that hold the keys and values of a prompt's beginning.

A prefix cache decides by tenant and tokens only. It never influences the order in which requests are served: a
scheduler that prefers hits tells one tenant of another's prompts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from cloister.engine.blocks import BlockPool


class PrefixCache(ABC):
    """Keeps computed full blocks beyond the life of a sequence, under references of its own in the pool."""

    @abstractmethod
    def attach(self, pool: BlockPool, block_tokens: int) -> None:
        """Meet the pool; the engine calls this once, before anything else."""

    @abstractmethod
    def match(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """Blocks holding the longest reusable prefix of `tokens`, whole blocks only, in order.

        They are retained in the pool for the caller, who releases them like its own and never writes to them.
        """

    @abstractmethod
    def offer(self, tenant: str, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """These full blocks hold the keys and values of exactly these tokens; retain what is worth keeping.

        They are of a prompt's first segment alone (compute.layout.Layout): its keys and values are a function of its
        tokens. What was offered when it was computed is offered again when its sequence leaves.
        """

    @abstractmethod
    def evict(self, count: int) -> None:
        """The pool runs short: let go so that `count` more blocks become free, or as many as can be.

        A block that nobody else holds must be given up when asked for, or requests would wait for ever.
        """


class NoReuse(PrefixCache):
    """Every sequence computes its own prompt."""

    def attach(self, pool: BlockPool, block_tokens: int) -> None:
        """Nothing to meet."""

    def match(self, tenant: str, tokens: Sequence[int]) -> list[int]:
        """Nothing to lend."""
        return []

    def offer(self, tenant: str, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        """Nothing is kept."""

    def evict(self, count: int) -> None:
        """Nothing is held."""
