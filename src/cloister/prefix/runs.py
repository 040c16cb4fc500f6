"""The runs of the tree in columns: a run is a small number, and what is known of it is at that place in each.

One Python object for each run, and one for each field that is no small number, would take more than the fields do.
A run's pages are one string of bytes: the tokens, then where each page's keys and values are. A number is given to
another run once its run is gone, so nobody keeps numbers (or node.Node) across a change of the tree.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import pack, unpack_from
from typing import TYPE_CHECKING

from cloister.prefix.heap import NOWHERE
from cloister.prefix.owners import NO_SEAT, Owner

if TYPE_CHECKING:
    from cloister.prefix.monitor import Watched

NONE = -1
PLACE_BYTES = 8
MOST = (1 << 32) - 1
"""Hits and epochs are counted so far."""


class Runs:
    """`parent`, `child`, `after` and `before` are runs: the one above, the first below, and its neighbours among
    siblings. `owner` is a seat in `owners`."""

    def __init__(self, page_bytes: int) -> None:
        self.page = page_bytes
        self.parent, self.child = array("i"), array("i")
        self.after, self.before = array("i"), array("i")
        self.owner = array("i")
        self.resident = array("i")
        """How many of its first pages are in the pool; all before a page that is are, too."""
        self.place = array("i")
        """In the heap of its account, where it waits to be evicted."""
        self.hits, self.epoch, self.users = array("I"), array("I"), array("I")
        self.content: list[bytes] = []
        self.links: dict[int, bytes] = {}
        """Of compressed chains (node.Link)."""
        self.rights: dict[int, array[int]] = {}
        """Of runs that several tenants may see: the seats of those whose own requests had these tokens there. A run of
        one tenant has no entry: the right to it is its owner's. Four bytes for each tenant and run."""
        self.watched: dict[int, Watched | float] = {}
        """What a monitor knows of a public run; of a private one, until when it may not become public again."""
        self.owners: list[Owner | None] = []
        self._free_seats: list[int] = []
        self._free = NONE
        """The last number that was given back; the one before it is its `after`."""

    def new(self, parent: int, owner: Owner, content: bytes) -> int:
        """A run that is nobody's child yet."""
        if self._free == NONE:
            self._grow()
        run, self._free = self._free, self.after[self._free]
        self.parent[run], self.child[run], self.after[run], self.before[run] = parent, NONE, NONE, NONE
        self.owner[run] = self._seat(owner)
        self.hits[run] = self.epoch[run] = self.users[run] = 0
        self.content[run] = content
        self.resident[run] = self.pages(run)
        return run

    def _grow(self) -> None:
        """A sixteenth more numbers, the next of them to be given first."""
        start, more = len(self.content), 16 + len(self.content) // 16
        for column in (self.child, self.before, self.resident, self.hits, self.epoch, self.users):
            column.frombytes(bytes(more * column.itemsize))
        for column in (self.parent, self.owner, self.place):
            column.extend(array("i", [NONE]) * more)
        self.after.extend(range(start + 1, start + more))
        self.after.append(NONE)
        self.content += [b""] * more
        self._free = start

    def free(self, run: int) -> None:
        """Forget a run that is in nobody's list. Its columns say that it is none, until the number is given again."""
        self.leave_heap(run)
        for seat in (self.owner[run], *self.rights.pop(run, ())):
            self._leave(seat)
        self.owner[run] = NO_SEAT
        self.parent[run] = self.child[run] = NONE
        self.resident[run] = 0
        self.content[run] = b""
        self.links.pop(run, None)
        self.watched.pop(run, None)
        self.after[run], self._free = self._free, run

    def give(self, run: int, owner: Owner) -> None:
        """Change who sees a run."""
        self.leave_heap(run)
        seat = self._seat(owner)
        self._leave(self.owner[run])
        self.owner[run] = seat

    def has_right(self, run: int, holder: Owner) -> bool:
        return holder.seat in self.rights.get(run, (self.owner[run],))

    def add_right(self, run: int, holder: Owner) -> None:
        """Let a tenant keep a run that others see too; whoever adds the first one makes it such a run."""
        rights = self.rights.setdefault(run, array("i"))
        if not rights or holder.seat not in rights:
            rights.append(self._seat(holder))

    def drop_right(self, run: int, holder: Owner) -> None:
        self.rights[run].remove(holder.seat)
        self._leave(holder.seat)

    def copy_rights(self, run: int, other: int) -> None:
        """Give the second run the rights of the first, of which it was a part."""
        for seat in self.rights.get(run, ()):
            self.add_right(other, self.owner_at(seat))

    def owner_at(self, seat: int) -> Owner:
        owner = self.owners[seat] if seat != NO_SEAT else None
        assert owner is not None
        return owner

    def leave_heap(self, run: int) -> None:
        if self.place[run] != NOWHERE:
            self.owner_at(self.owner[run]).account.heap.remove(run, self.place)

    def pages(self, run: int) -> int:
        return len(self.content[run]) // (self.page + PLACE_BYTES)

    def first(self, run: int) -> bytes:
        """The tokens of its first page."""
        return self.content[run][: self.page]

    def tokens(self, run: int) -> bytes:
        return self.content[run][: self.pages(run) * self.page]

    def places(self, run: int, start: int, end: int) -> tuple[int, ...]:
        """Where pages are: in a block, or, below 0, at `~number` of a lower tier."""
        if start >= end:
            return ()
        return unpack_from(f"<{end - start}q", self.content[run], self.pages(run) * self.page + start * PLACE_BYTES)

    def set_places(self, run: int, start: int, places: Sequence[int]) -> None:
        content, at = self.content[run], self.pages(run) * self.page + start * PLACE_BYTES
        self.content[run] = content[:at] + pack(f"<{len(places)}q", *places) + content[at + len(places) * PLACE_BYTES :]

    def below(self, run: int) -> list[int]:
        """Its children."""
        found, child = [], self.child[run]
        while child != NONE:
            found.append(child)
            child = self.after[child]
        return found

    def is_edge(self, run: int) -> bool:
        """Whether nothing below it is in the pool: what is evicted next from here is this run's last page."""
        child = self.child[run]
        while child != NONE:
            if self.resident[child]:
                return False
            child = self.after[child]
        return True

    def attach(self, run: int, parent: int) -> None:
        """Put a run first among its parent's children."""
        first = self.child[parent]
        self.parent[run], self.before[run], self.after[run] = parent, NONE, first
        if first != NONE:
            self.before[first] = run
        self.child[parent] = run

    def detach(self, run: int) -> None:
        before, after = self.before[run], self.after[run]
        if before != NONE:
            self.after[before] = after
        else:
            self.child[self.parent[run]] = after
        if after != NONE:
            self.before[after] = before
        self.parent[run] = self.before[run] = self.after[run] = NONE

    def _seat(self, owner: Owner) -> int:
        if not owner.runs:
            owner.seat = self._free_seats.pop() if self._free_seats else len(self.owners)
            self.owners[owner.seat : owner.seat + 1] = [owner]
        owner.runs += 1
        return owner.seat

    def _leave(self, seat: int) -> None:
        owner = self.owner_at(seat)
        owner.runs -= 1
        if not owner.runs:
            self.owners[seat] = None
            self._free_seats.append(seat)
            owner.seat = NO_SEAT


def content_of(tokens: bytes, places: Sequence[int]) -> bytes:
    return tokens + pack(f"<{len(places)}q", *places)
