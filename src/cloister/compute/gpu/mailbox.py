"""Where things are in a mailbox, one for each attention process: gates, one for each layer, and a box for each user.

As link.cuh reads it. Addresses are numbers here: nothing is mapped.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloister.compute.base import AttentionShape

PAGE = 4096
GATE_BYTES = 64
WORD = 8


@dataclass(frozen=True, slots=True)
class MailboxShape:
    """The sizes of a mailbox for so many users of a model."""

    users: int
    layers: int
    heads: int
    dim: int

    @classmethod
    def of(cls, model: AttentionShape, users: int) -> MailboxShape:
        return cls(users, model.cache_shape.layers, model.heads, model.cache_shape.dim)

    @property
    def gates(self) -> int:
        """The gates, and one word more: the number of the step."""
        return -(-(self.layers + 1) * GATE_BYTES // PAGE) * PAGE

    @property
    def box(self) -> int:
        return -(-(self.heads * (2 * self.dim + 2) + 1) * WORD // PAGE) * PAGE

    @property
    def size(self) -> int:
        return self.gates + self.users * self.box

    def boxes(self, address: int) -> list[int]:
        """Where each user's box is in a mailbox that is mapped at this address."""
        return [address + self.gates + user * self.box for user in range(self.users)]
