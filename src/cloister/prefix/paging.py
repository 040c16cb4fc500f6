"""How a prompt's positions fall into pages. The tree compares pages; each fills one block.
Keys after a public span depend on where the span ended (compute.layout.Layout), so its last page is padded, and tokens
after it get other numbers than the same tokens in a prompt without a public span."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

NO_TOKEN = -1
AFTER_PUBLIC = 1 << 30  # added to tokens after a public span: no vocabulary is that large


@dataclass(frozen=True, slots=True)
class Paging:
    """The first `public` tokens are a separate segment; pages have `size` tokens."""

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
