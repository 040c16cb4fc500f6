"""How a prompt's positions fall into pages. The tree compares pages; each fills one block.

A prompt with a public span is computed in two segments, in separate blocks, and the second segment's keys depend on
where the first ended (compute.layout.Layout). So the public span's last page is padded, and tokens after the span get
other numbers than the same tokens in a prompt without one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

NO_TOKEN = -1
AFTER_PUBLIC = 1 << 30
"""Added to tokens after a public span. No vocabulary is that large."""


@dataclass(frozen=True, slots=True)
class Paging:
    """A prompt of `prompt` tokens, the first `public` of them a separate segment, in pages of `size`."""

    public: int
    prompt: int
    size: int

    @property
    def public_pages(self) -> int:
        return -(-self.public // self.size)

    def pages(self, positions: int) -> int:
        """How many pages the first positions complete: full pages, and the public span's last."""
        positions = min(positions, self.prompt)
        if not self.public or positions < self.public:
            return positions // self.size
        return self.public_pages + (positions - self.public) // self.size

    def positions(self, pages: int) -> int:
        """How many positions the first pages hold."""
        if not self.public or pages < self.public_pages:
            return pages * self.size
        return self.public + (pages - self.public_pages) * self.size

    def pack(self, tokens: Sequence[int]) -> bytes:
        """All whole pages of these tokens, four bytes for each."""
        if not self.public:
            whole = tokens[: self.prompt // self.size * self.size]
        else:
            after = self.positions(self.pages(self.prompt))
            filling = [NO_TOKEN] * (self.public_pages * self.size - self.public)
            whole = [*tokens[: self.public], *filling, *(token + AFTER_PUBLIC for token in tokens[self.public : after])]
        return struct.pack(f"<{len(whole)}i", *whole)
