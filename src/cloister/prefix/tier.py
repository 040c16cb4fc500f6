"""What is below the pool: copies of blocks that left it, for when they are found again. A tier knows no tree.

No call waits for a device but `settle`. What a tier has lost, for want of room or otherwise, is a miss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum
from itertools import count
from typing import Generic, TypeVar

from cloister.prefix.owners import Account, Owner

Entry = TypeVar("Entry")


class State(Enum):
    """HERE: it can be taken now. COMING: it is being brought, or will be when there is room for it; ask again."""

    HERE = "here"
    COMING = "coming"
    LOST = "lost"


class Tier(ABC):
    """Blocks by number; no number is given twice. `bound` is a digest of all tokens up to a block's end."""

    @abstractmethod
    def room(self, most: int) -> int:
        """For how many more blocks there is room now, `most` at most. Older ones go for it."""

    @abstractmethod
    def store(self, owner: Owner, bound: bytes, data: bytes) -> int | None:
        """Keep what a block holds; its number, or None without room: then it is lost."""

    @abstractmethod
    def fetch(self, number: int, bound: bytes) -> State:
        """Where a block is. If it must be brought from somewhere, that begins."""

    @abstractmethod
    def take(self, number: int) -> bytes | None:
        """What a block holds that is HERE, which the tier then keeps no longer; None if it has to be fetched again."""

    @abstractmethod
    def discard(self, number: int) -> None:
        """Nobody needs this one any more, if it is still there."""

    def settle(self, seconds: float) -> bool:
        """Wait until nothing is under way, so long at most. Whether that is so."""
        return True

    def close(self) -> None:
        """Forget everything."""
        return None


class Shelf(Generic[Entry]):
    """A tier's entries, each in a place of its own, by whose they are: who has most gives first, its oldest."""

    def __init__(self, places: int) -> None:
        self.places = places
        self._free = list(range(places - 1, -1, -1))
        self._numbers = count(1)
        self._held: dict[int, tuple[Account, int, Entry]] = {}
        self._of: dict[Account, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[int]:
        return iter(self._held)

    @property
    def free(self) -> int:
        return len(self._free)

    def add(self, account: Account, entry: Entry) -> tuple[int, int]:
        """The entry's number and its place. There must be a free one."""
        number, place = next(self._numbers), self._free.pop()
        self._held[number] = account, place, entry
        self._of.setdefault(account, {})[number] = None
        return number, place

    def get(self, number: int) -> tuple[int, Entry] | None:
        """An entry's place, and the entry."""
        held = self._held.get(number)
        return None if held is None else held[1:]

    def remove(self, number: int) -> None:
        account, place, _ = self._held.pop(number)
        self._free.append(place)
        mine = self._of[account]
        del mine[number]
        if not mine:
            del self._of[account]  # with it goes the key, once nothing else is the account's

    def oldest(self) -> int:
        """What goes first."""
        most = max(self._of.values(), key=len)
        return next(iter(most))
