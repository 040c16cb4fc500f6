"""What a process to be sealed may keep."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from cloister.process.sandbox.layers import Layer


@dataclass(frozen=True)
class Profile:
    """`without` leaves layers out on purpose: it exists so that a test can watch a check go red."""

    name: Literal["vault", "service", "parlour"]
    keep_descriptors: Collection[int]
    data_bytes: int
    without: frozenset[Layer] = frozenset()
    allow_degraded: bool = False

    @property
    def receives_descriptors(self) -> bool:
        """A link's memory reaches the service when a vault comes up; a vault has all of its own before the seal."""
        return self.name == "service"

    @property
    def open_files(self) -> int:
        """One more than the highest descriptor it may ever have."""
        spare = 1024 if self.receives_descriptors else 16
        return max((2, *self.keep_descriptors)) + 1 + spare
