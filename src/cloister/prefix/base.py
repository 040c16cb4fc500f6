"""The contract of a prefix cache. It orders no requests: to prefer hits would reveal a tenant's prompts to others."""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cloister.levels import PolicyName

NO_TOKEN = -1
TOKEN_BYTES = 4
AFTER_PUBLIC = 1 << 30  # added to tokens after a public span: no vocabulary is that large


@dataclass(frozen=True, slots=True)
class Paging:
    """Pages of `size`; the `public` segment's last is padded: later keys depend on its end (compute.layout.Layout)."""

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


@dataclass(frozen=True, slots=True, eq=False, repr=False, weakref_slot=True)
class PrefixKey:
    """`tokens` are the request's pages (Paging.pack); a page fills one block."""

    request_id: int
    tenant: str
    salt: str
    policy: PolicyName
    paging: Paging
    tokens: bytes
    labelled_as: "PrefixKey | None" = None  # the key of the prompt alone, whose label bounds what is public here


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks of first pages, `public` ones for all tenants. Usage says `shown` were found, `shared` of them others'.
    Retained for the caller, which releases them and must not write to them."""

    blocks: tuple[int, ...] = ()
    public: int = 0
    shown: int = 0
    shared: int = 0


NOTHING = Found()


class PrefixCache:
    """This one reuses nothing."""

    pool: BlockPool
    keeps_answers = False  # whether an answer is computed again, as a prompt, to be inserted

    @property
    def evictions(self) -> int:
        """Of pages."""
        return 0

    def attach(self, pool: BlockPool, page_tokens: int) -> None:
        self.pool = pool

    def lookup(self, key: PrefixKey, most: int) -> Found:
        return NOTHING

    def expect(self, key: PrefixKey) -> None:
        """From now on the key may be labelled."""

    def resume(self, key: PrefixKey) -> Sequence[int]:
        """Blocks that this key's request inserted or found before, retained for the caller; no hit."""
        return ()

    def insert(self, key: PrefixKey, blocks: Sequence[int]) -> None:
        """Retain what is worth keeping of these blocks. Called whenever more blocks are full, and at the end."""

    def evict(self, count: int) -> None:
        """Free `count` more blocks. A block that no sequence holds must go, or requests would wait for ever."""

    def make_room(self, count: int) -> bool:
        """Whether `count` blocks are free, after evicting as many as lack."""
        if self.pool.free < count:
            self.evict(count - self.pool.free)
        return self.pool.free >= count

    def label(self, request_id: int, public_tokens: int, registered: int = 0) -> None:
        """The first `public_tokens` tokens are public (SafeKV §V-D), the first `registered` by registration.
        The request finds other tenants' public pages up to this number only. A second label changes nothing."""

    def forget(self, tenant: str) -> None:
        """Drop every page that only this tenant has a right to. Blocks that no running sequence holds are wiped now."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A salt narrows every policy: only requests with the same salt find each other, and nothing public.
    A request's mark `public` only permits its service to read a text: a tenant may mark a guess at another's words."""

    name: PolicyName
    reuses: bool = True
    everything_public: bool = False  # all tenants see all that is computed
    # all tenants see what the controller labels public; unlabelled pages are private (SafeKV §V-D). Usage reports a
    # tenant's own hits and registered ones; hits do not order public pages
    labelled_public: bool = False

    @property
    def sees_public(self) -> bool:
        return self.everything_public or self.labelled_public


POLICIES: dict[PolicyName, Policy] = {
    policy.name: policy
    for policy in (
        Policy("none", reuses=False),
        Policy("global", everything_public=True),
        Policy("partition"),
        Policy("registered", labelled_public=True),
        Policy("counted", labelled_public=True),
    )
}
