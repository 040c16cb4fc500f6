"""The contract of a prefix cache, and the one that keeps nothing.

A prefix cache keeps computed blocks beyond the life of a sequence, under references of its own in the pool. It decides
by tenant, salt, policy and tokens alone, and never influences the order in which requests are served: a scheduler that
prefers hits tells one tenant of another's prompts. It knows neither text nor keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloister.levels import PolicyName
from cloister.prefix.paging import Paging

TOKEN_BYTES = 4


class Pool(Protocol):
    """The engine's block pool, as far as a cache needs it (engine.blocks.BlockPool)."""

    total: int

    @property
    def free(self) -> int: ...
    def references(self, block: int) -> int: ...
    def allocate(self, count: int) -> list[int] | None: ...
    def retain(self, blocks: Iterable[int]) -> None: ...
    def release(self, blocks: Iterable[int]) -> None: ...


class Storage(Protocol):
    """Where the blocks' keys and values are (compute.base.KVCache). Only a tier below the pool asks for them."""

    @property
    def block_bytes(self) -> int: ...
    def read(self, block: int) -> bytes: ...
    def write(self, block: int, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class PrefixKey:
    """What one request shows of itself. `tokens` are its pages (Paging.pack); a page is what one block holds."""

    request_id: int
    tenant: str
    salt: str
    policy: PolicyName
    paging: Paging
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks that hold a key's first pages, in order; the first `public` of them are lent to everybody.

    They are retained in the pool for the caller, who releases them like its own and never writes to them. More are
    `coming` from a lower tier: who asks again later may find them.
    """

    blocks: tuple[int, ...] = ()
    public: int = 0
    coming: bool = False


NOTHING = Found()


@dataclass(slots=True)
class Counts:
    """Since the start, over all tenants: runs that a monitor took back, pages that were given up for room, those of
    them that were handed to a lower tier, and those that came back."""

    demotions: int = 0
    evictions: int = 0
    offloads: int = 0
    recalls: int = 0


class PrefixCache(ABC):
    """Lends and keeps blocks."""

    @property
    def counts(self) -> Counts:
        """For the operator."""
        return Counts()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        """Meet the pool; the engine calls this once, before anything else."""
        return None

    @abstractmethod
    def lookup(self, key: PrefixKey, most: int) -> Found:
        """The longest beginning that this key may see, `most` pages at most."""

    def prefetch(self, key: PrefixKey, most: int) -> None:
        """This key will be looked up: begin to bring what a lower tier has of it. Nothing waits for that. From now on
        it may be labelled."""
        return None

    def settle(self, seconds: float) -> bool:
        """Wait until nothing is on its way between tiers, so long at most. Whether that is so."""
        return True

    @abstractmethod
    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        """These blocks hold the keys and values of the key's first pages; retain what is worth keeping.

        Called when blocks are full, as often as there are more of them, and once more when the sequence leaves.
        """

    @abstractmethod
    def evict(self, count: int) -> None:
        """The pool runs short: release blocks until `count` more are free, or as many as can be.

        A block that nobody else holds must be given up, or requests would wait for ever.
        """

    def label(self, request_id: int, public_tokens: int, *, final: bool = True) -> None:
        """A detector says that so many tokens at this request's beginning hold nothing private (SafeKV §V-D).

        What follows a private page is private, too, so one number says it all. After one that is not `final` another
        may say more, never less. It is also as far as the request finds what others made public.
        """
        return None

    def forget(self, tenant: str) -> None:
        """Drop everything that this tenant alone has a right to; what no running sequence holds is wiped now."""
        return None


class NoReuse(PrefixCache):
    """Keeps nothing: every sequence computes its own prompt."""

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return NOTHING

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        return None

    def evict(self, count: int) -> None:
        return None
