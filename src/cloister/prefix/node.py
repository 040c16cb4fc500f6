"""A run of the tree, as one looks at it: the tokens of whole blocks, and where their keys and values are.

Its owner says who may see it: one tenant, or everybody. A run that everybody sees has holders: the tenants whose own
requests had these tokens there. SafeKV (§VI-A: `private_tag`, `creator_id`) keeps the first of them alone; then a run
goes with the tenant that brought it, whoever else uses it. What is known of a run is in columns (runs.Runs); a node is
made where one is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import iter_unpack, pack
from typing import TYPE_CHECKING, NamedTuple

from cloister.prefix.owners import Owner
from cloister.prefix.runs import MOST, NONE, Runs

if TYPE_CHECKING:
    from cloister.prefix.monitor import Watched

_LINK = "<QQQQ"


class Link(NamedTuple):
    """A node that path compression made a part of its `pri_root`: enough to make it a node again (SafeKV §VI-B1)."""

    pages: int
    epoch: int
    hits: int
    users: int


class Node:
    """Two nodes are equal if they are the same run. Of one that is gone, `parent` is None."""

    __slots__ = ("_runs", "run")

    def __init__(self, runs: Runs, run: int) -> None:
        self._runs = runs
        self.run = run

    def __repr__(self) -> str:
        """Without the tokens: a log may show a node."""
        return f"<Node of {self.pages} pages>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.run == other.run

    def __hash__(self) -> int:
        return self.run

    @property
    def parent(self) -> Node | None:
        above = self._runs.parent[self.run]
        return None if above == NONE else Node(self._runs, above)

    @property
    def is_gone(self) -> bool:
        """Whether it is no run of the tree any more; the root never is one."""
        return self._runs.parent[self.run] == NONE

    @property
    def children(self) -> list[Node]:
        return [Node(self._runs, child) for child in self._runs.below(self.run)]

    @property
    def has_children(self) -> bool:
        return self._runs.child[self.run] != NONE

    @property
    def owner(self) -> Owner:
        return self._runs.owner_at(self._runs.owner[self.run])

    @property
    def holders(self) -> tuple[Owner, ...]:
        """Who keeps the run if it is private again, or if others are forgotten; the first came first."""
        seats = self._runs.rights.get(self.run)
        return (self.owner,) if seats is None else tuple(map(self._runs.owner_at, seats))

    def is_held_by(self, holder: Owner) -> bool:
        return self._runs.has_right(self.run, holder)

    def add_holder(self, holder: Owner) -> None:
        self._runs.add_right(self.run, holder)

    def drop_holder(self, holder: Owner) -> None:
        self._runs.drop_right(self.run, holder)

    @property
    def tokens(self) -> bytes:
        return self._runs.tokens(self.run)

    @property
    def pages(self) -> int:
        return self._runs.pages(self.run)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Of each page; one below 0 is `~number` of a lower tier."""
        return self._runs.places(self.run, 0, self.pages)

    def places(self, start: int, end: int) -> tuple[int, ...]:
        """Some of its blocks."""
        return self._runs.places(self.run, start, end)

    def set_places(self, start: int, places: Sequence[int]) -> None:
        self._runs.set_places(self.run, start, places)

    @property
    def resident(self) -> int:
        return self._runs.resident[self.run]

    @resident.setter
    def resident(self, pages: int) -> None:
        self._runs.resident[self.run] = pages

    @property
    def epoch(self) -> int:
        return self._runs.epoch[self.run]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._runs.epoch[self.run] = epoch

    @property
    def hits(self) -> int:
        return self._runs.hits[self.run]

    @property
    def user_count(self) -> int:
        """Tenants that found it, exact up to as many as a node has bits for."""
        return self._runs.users[self.run].bit_count()

    @property
    def watched(self) -> Watched | float | None:
        return self._runs.watched.get(self.run)

    @watched.setter
    def watched(self, watched: Watched | float | None) -> None:
        if watched is None:
            self._runs.watched.pop(self.run, None)
        else:
            self._runs.watched[self.run] = watched

    @property
    def links(self) -> list[Link] | None:
        """None, or of which nodes a compressed private chain is made; the node is their `pri_root`."""
        packed = self._runs.links.get(self.run)
        return None if packed is None else [Link(*link) for link in iter_unpack(_LINK, packed)]

    @links.setter
    def links(self, links: list[Link] | None) -> None:
        if links is None or len(links) < 2:
            self._runs.links.pop(self.run, None)
        else:
            self._runs.links[self.run] = b"".join(pack(_LINK, *link) for link in links)

    def add_link(self, link: Link) -> None:
        """As if `links` had one more; one that had none is the first of them."""
        packed = self._runs.links.get(self.run) or pack(_LINK, *self.as_link)
        self._runs.links[self.run] = packed + pack(_LINK, *link)

    @property
    def as_link(self) -> Link:
        runs, run = self._runs, self.run
        return Link(self.pages, runs.epoch[run], runs.hits[run], runs.users[run])

    def use_as(self, link: Link) -> None:
        """Be as used as this says."""
        runs, run = self._runs, self.run
        runs.epoch[run], runs.hits[run], runs.users[run] = link[1:]

    @property
    def is_compressed(self) -> bool:
        return self.run in self._runs.links

    @property
    def is_edge(self) -> bool:
        return self._runs.is_edge(self.run)

    def touch(self, user: Owner, epoch: int) -> None:
        runs, run = self._runs, self.run
        runs.epoch[run] = epoch
        runs.hits[run] = min(runs.hits[run] + 1, MOST)
        runs.users[run] |= user.bit
