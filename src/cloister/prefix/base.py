"""The contract of a prefix cache, and a cache that keeps nothing.

A prefix cache keeps computed blocks beyond the life of a sequence, by holding references in the pool. It decides by
tenant, salt, policy and tokens alone. It has no part in the order of requests: a scheduler that prefers hits reveals
one tenant's prompts to another. It handles neither text nor keys and values.
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
    """What a cache needs of the engine's block pool (engine.blocks.BlockPool)."""

    total: int

    @property
    def free(self) -> int: ...
    def references(self, block: int) -> int: ...
    def allocate(self, count: int) -> list[int] | None: ...
    def retain(self, blocks: Iterable[int]) -> None: ...
    def release(self, blocks: Iterable[int]) -> None: ...


class Storage(Protocol):
    """The blocks' keys and values (compute.base.KVCache), for a tier below the pool."""

    @property
    def block_bytes(self) -> int: ...
    def read(self, block: int) -> bytes: ...
    def write(self, block: int, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class PrefixKey:
    """What the cache gets of one request. `tokens` are its pages (Paging.pack); a page fills one block."""

    request_id: int
    tenant: str
    salt: str
    policy: PolicyName
    paging: Paging
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks that hold a key's first pages, in order; the first `public` of them are visible to all tenants.

    They are retained in the pool for the caller, which releases them and must not write to them. If `coming`, a lower
    tier reads more of them now, and a later lookup may find these.
    """

    blocks: tuple[int, ...] = ()
    public: int = 0
    coming: bool = False


NOTHING = Found()


@dataclass(slots=True)
class Counts:
    """Since the start, over all tenants: nodes that the monitor demoted, pages that were evicted, evicted pages that
    went to a lower tier, and pages that came back."""

    demotions: int = 0
    evictions: int = 0
    offloads: int = 0
    recalls: int = 0


class PrefixCache(ABC):
    """Keeps blocks and lends them."""

    @property
    def counts(self) -> Counts:
        """For the operator."""
        return Counts()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        """Use this pool. The engine calls this once, first."""
        return None

    @abstractmethod
    def lookup(self, key: PrefixKey, most: int) -> Found:
        """The longest beginning that this key may see, `most` pages at most."""

    def prefetch(self, key: PrefixKey, most: int) -> None:
        """This key will be looked up: start to read what a lower tier has of it, without waiting. From now on the key
        may be labelled."""
        return None

    def settle(self, seconds: float) -> bool:
        """Wait until no page moves between tiers, `seconds` at most. False after a timeout."""
        return True

    @abstractmethod
    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        """Retain what is worth keeping of these blocks, which hold the key's first pages.

        Called whenever more blocks are full, and once more when the sequence leaves.
        """

    @abstractmethod
    def evict(self, count: int) -> None:
        """Release blocks until `count` more are free. A block that no sequence holds must be given up if needed, or
        requests would wait for ever."""

    def label(self, request_id: int, public_tokens: int, *, final: bool = True) -> None:
        """A detector found the first `public_tokens` tokens of this request public (SafeKV §V-D).

        What follows a private page is private too, so one number is enough. After a label that is not `final` another
        may raise the number. The request finds other tenants' public pages up to this number only.
        """
        return None

    def forget(self, tenant: str) -> None:
        """Drop every page that only this tenant has a right to. Blocks that no running sequence holds are wiped now."""
        return None


class NoReuse(PrefixCache):
    """Keeps nothing: every sequence computes its own prompt."""

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return NOTHING

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        return None

    def evict(self, count: int) -> None:
        return None
