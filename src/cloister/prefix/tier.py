"""Tiers below the pool: copies of blocks that left it. A lost block is a miss. Only `settle` waits for a device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Generic, TypeVar

from cloister.prefix.node import Namespace, Tenant

Entry = TypeVar("Entry")


class State(Enum):
    """COMING: it is being read, or will be when there is room; ask again."""

    HERE = "here"
    COMING = "coming"
    LOST = "lost"


class Tier(ABC):
    """Blocks by number; no number is used twice. `bound` is a digest of all tokens up to a block's end."""

    @abstractmethod
    def room(self, most: int) -> int:
        """Make room for up to `most` more blocks by dropping older ones. Returns how many fit."""

    @abstractmethod
    def store(self, namespace: Namespace, bound: bytes, data: bytes) -> int | None: ...

    @abstractmethod
    def fetch(self, number: int, bound: bytes) -> State:
        """If the block has to be read from a device, reading starts now."""

    @abstractmethod
    def take(self, number: int) -> bytes | None:
        """Take a block that is HERE out of the tier. None if it has to be fetched again."""

    @abstractmethod
    def discard(self, number: int) -> None: ...

    def settle(self, seconds: float) -> bool:
        """Wait until no block is being written or read. False after a timeout."""
        return True

    def close(self) -> None:
        return None


class Slots(Generic[Entry]):
    """The tenant with the most entries loses its oldest first."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._numbers = count(1)
        self._entries: dict[int, tuple[Tenant, int, Entry]] = {}
        self._of: dict[Tenant, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    @property
    def free(self) -> int:
        return len(self._free)

    def add(self, tenant: Tenant, entry: Entry) -> tuple[int, int]:
        number, slot = next(self._numbers), self._free.pop()
        self._entries[number] = tenant, slot, entry
        self._of.setdefault(tenant, {})[number] = None
        return number, slot

    def get(self, number: int) -> tuple[int, Entry] | None:
        found = self._entries.get(number)
        return None if found is None else found[1:]

    def remove(self, number: int) -> None:
        tenant, slot, _ = self._entries.pop(number)
        self._free.append(slot)
        mine = self._of[tenant]
        del mine[number]
        if not mine:
            del self._of[tenant]  # this may be the last reference to the tenant's key

    def oldest(self) -> int:
        most = max(self._of.values(), key=len)
        return next(iter(most))
