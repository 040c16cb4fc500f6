"""How a link's two pieces of memory are laid out: the Python twin of link.h's structures."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from cloister.errors import ProtocolError

MAGIC, VERSION = 0x4B4E4C43, 1
CLOSED = 0xFFFFFFFF
NUMBER_AT, WAITING_AT, ROWS_AT = 64, 128, 192
ASK_BYTES = 8
_HEAD = struct.Struct("<6I")


@dataclass(frozen=True, slots=True)
class LinkShape:
    """The model's numbers that a link depends on, and how many rows one question may have."""

    heads: int
    dim: int
    layers: int
    capacity: int = 128

    @property
    def question_bytes(self) -> int:
        return ROWS_AT + self.capacity * (ASK_BYTES + 4 * self.heads * self.dim)

    @property
    def answer_bytes(self) -> int:
        return ROWS_AT + 4 * self.capacity * self.heads * (self.dim + 2)

    def head(self) -> bytes:
        """What both pieces begin with."""
        return _HEAD.pack(MAGIC, VERSION, self.heads, self.dim, self.layers, self.capacity)

    def check(self, head: bytes) -> None:
        """Refuse a piece that was made for something else."""
        if head[: _HEAD.size] != self.head():
            raise ProtocolError("A link was made for another model or another version.")
