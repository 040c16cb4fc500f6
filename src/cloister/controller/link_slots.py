"""Link slots: the memory of an attention process that vaults get for their links, and when a slot is free again.

A slot is one vault's until that has ended and its memory is cleared. It knows numbers and descriptors, no prompts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from cloister.errors import ServiceUnavailable
from cloister.process.child import Child


class LinkSlots:
    """Of one life of a service, which closes the descriptors. `end` ends the vault in a slot and calls back when it has
    ended and nothing is left of it there. Slots a whole number of `groups` apart have the same attention process; they
    are taken evenly. `weights` is the descriptor of the device's memory that all vaults read the weights from."""

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
        """Called when one more slot is free."""

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        if not self._free:
            raise ServiceUnavailable("There is no room for another vault.", hint="Try again in a few seconds.")
        slot = min(self._free, key=lambda free: self._taken[free % self._groups])
        self._free.remove(slot)
        self._taken[slot % self._groups] += 1
        return slot

    def descriptors(self, slot: int) -> tuple[int, int]:
        """For both directions of a link."""
        return self._descriptors[slot], self._descriptors[slot]

    def release(self, slot: int, vault: Child) -> None:
        """The vault in this slot must end; then the slot is free."""
        self._end(vault, slot, lambda: self._freed(slot))

    def _freed(self, slot: int) -> None:
        self._free.append(slot)
        self._taken[slot % self._groups] -= 1
        self.on_free()
