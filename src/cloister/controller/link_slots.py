"""Places of links in memory that a service's device has: who has which, and when it is free again.

A place is one vault's until that has ended: nobody else maps it meanwhile. It knows numbers and descriptors, not what
is there.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from cloister.errors import ServiceUnavailable
from cloister.process.child import Child


class LinkSlots:
    """Of one life of a service, which closes the descriptors. `end` ends the vault at a place and says when it is
    gone and nothing is left of it there. Places a whole number of `groups` apart are alike: they are taken evenly.
    `weights` is the descriptor of the device's memory that all vaults read them from, if there is one."""

    def __init__(
        self,
        descriptors: Mapping[int, int],
        end: Callable[[Child, int, Callable[[], None]], None],
        groups: int = 1,
        weights: int | None = None,
    ) -> None:
        self._descriptors, self.weights = descriptors, weights
        self._groups, self._taken = groups, Counter[int]()
        self._free = deque(descriptors)
        self._end = end
        self.on_free: Callable[[], None] = lambda: None
        """Told when there is one more."""

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        if not self._free:
            raise ServiceUnavailable("No more vaults can be had at once.", hint="Try again in a few seconds.")
        place = min(self._free, key=lambda free: self._taken[free % self._groups])
        self._free.remove(place)
        self._taken[place % self._groups] += 1
        return place

    def descriptors(self, place: int) -> tuple[int, int]:
        """For both directions of a link."""
        return self._descriptors[place], self._descriptors[place]

    def leave(self, place: int, vault: Child) -> None:
        """The vault at this place must end; then the place is free."""
        self._end(vault, place, lambda: self._freed(place))

    def _freed(self, place: int) -> None:
        self._free.append(place)
        self._taken[place % self._groups] -= 1
        self.on_free()
