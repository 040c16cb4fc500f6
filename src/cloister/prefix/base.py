"""The contract of a prefix cache, which decides by tenant, salt, policy and tokens alone.
It has no part in the order of requests: a scheduler that prefers hits reveals one tenant's prompts to another."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cloister.levels import PolicyName

NO_TOKEN = -1
TOKEN_BYTES = 4
AFTER_PUBLIC = 1 << 30  # added to tokens after a public span: no vocabulary is that large


@dataclass(frozen=True, slots=True)
class Paging:
    """How positions fall into pages of `size` tokens, each in one block; the first `public` tokens are one segment.
    Keys after a public span depend on where it ended (compute.layout.Layout), so its last page is padded, and tokens
    after it get other numbers."""

    public: int
    prompt: int
    size: int

    @property
    def public_pages(self) -> int:
        return -(-self.public // self.size)

    def pages(self, positions: int) -> int:
        positions = min(positions, self.prompt)
        if not self.public or positions < self.public:
            return positions // self.size
        return self.public_pages + (positions - self.public) // self.size

    def positions(self, pages: int) -> int:
        if not self.public or pages < self.public_pages:
            return pages * self.size
        return self.public + (pages - self.public_pages) * self.size

    def pack(self, tokens: Sequence[int]) -> bytes:
        if not self.public:
            whole = tokens[: self.prompt // self.size * self.size]
        else:
            after = self.positions(self.pages(self.prompt))
            filling = [NO_TOKEN] * (self.public_pages * self.size - self.public)
            whole = [*tokens[: self.public], *filling, *(token + AFTER_PUBLIC for token in tokens[self.public : after])]
        return struct.pack(f"<{len(whole)}i", *whole)


class Pool(Protocol):
    total: int

    @property
    def free(self) -> int: ...
    def references(self, block: int) -> int: ...
    def allocate(self, count: int) -> list[int] | None: ...
    def retain(self, blocks: Iterable[int]) -> None: ...
    def release(self, blocks: Iterable[int]) -> None: ...


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class PrefixKey:
    """`tokens` are the request's pages (Paging.pack); a page fills one block."""

    request_id: int
    tenant: str
    salt: str
    policy: PolicyName
    paging: Paging
    tokens: bytes
    labelled_as: PrefixKey | None = None  # the key of the prompt alone, whose label bounds what is public here


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks of a key's first pages; the first `public` are visible to all tenants. Usage says that the first `shown`
    were found, and names the first `shared` of them as others' (without a grid of first tokens). They are
    retained in the pool for the caller, which releases them and must not write to them."""

    blocks: tuple[int, ...] = ()
    public: int = 0
    shown: int = 0
    shared: int = 0


NOTHING = Found()


@dataclass(slots=True)
class Counts:
    evictions: int = 0  # pages


class PrefixCache:
    """This one reuses nothing."""

    pool: Pool
    keeps_answers = False  # whether an answer is computed again, as a prompt, to be inserted

    @property
    def counts(self) -> Counts:
        return Counts()

    def attach(self, pool: Pool, page_tokens: int) -> None:
        self.pool = pool

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return NOTHING

    def expect(self, key: PrefixKey) -> None:
        """From now on the key may be labelled."""
        return None

    def resume(self, key: PrefixKey) -> Sequence[int]:
        """Blocks that this key's request inserted or found before, retained for the caller; no hit."""
        return ()

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        """Retain what is worth keeping of these blocks. Called whenever more blocks are full, and at the end."""
        return None

    def evict(self, count: int) -> None:
        """Free `count` more blocks. A block that no sequence holds must go, or requests would wait for ever."""
        return None

    def make_room(self, count: int) -> bool:
        """Whether `count` blocks are free, after evicting as many as lack."""
        if self.pool.free < count:
            self.evict(count - self.pool.free)
        return self.pool.free >= count

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        """The first `public_tokens` tokens are public (SafeKV §V-D), the first `registered` by registration.
        The request finds other tenants' public pages up to this number only. A second label changes nothing."""
        return None

    def forget(self, tenant: str) -> None:
        """Drop every page that only this tenant has a right to. Blocks that no running sequence holds are wiped now."""
        return None
