"""Link slots: memory of an attention process for one vault's link, until the vault has ended and the memory is
cleared."""

from collections import Counter, deque
from collections.abc import Callable, Mapping

from cloister.errors import ServiceUnavailable
from cloister.process.child import Child


class LinkSlots:
    """`end` calls back when nothing is left of the vault. Slots a multiple of `groups` apart have one attention
    process."""

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
        self.on_free: Callable[[], None] = lambda: None  # called when one more slot is free

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
        self._end(vault, slot, lambda: self._freed(slot))

    def _freed(self, slot: int) -> None:
        self._free.append(slot)
        self._taken[slot % self._groups] -= 1
        self.on_free()
