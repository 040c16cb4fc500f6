from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from cloister.compute.layout import Chunk, Wanted
from cloister.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """`samples`: the last row yields the next token."""

    sequence: Sequence
    chunk: Chunk
    samples: bool

    @property
    def end(self) -> int:
        return self.chunk.start + len(self.chunk.tokens)

    @property
    def asked_rows(self) -> int:
        """Rows that query the vault over the link, once per layer: those of generated tokens."""
        layout = self.chunk.layout
        return max(0, self.end - max(self.chunk.start, layout.prompt)) if layout.remote else 0

    @property
    def rows(self) -> int:
        if self.chunk.wanted is Wanted.ALL:
            return len(self.chunk.tokens)
        return 1 if self.chunk.wanted is Wanted.LAST else 0


class LinkRows:
    """A link's memory holds `most` queries. Rows of a public span make no query."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[int] = Counter()

    def take(self, work: Iterable[Work]) -> None:
        for part in work:
            if part.sequence.link is not None:
                self._taken[part.sequence.link] += part.asked_rows

    def fitting(self, sequence: Sequence, chunk: int) -> int:
        """How many of the sequence's next `chunk` tokens may be computed in this step."""
        if sequence.link is None:
            return chunk
        left = self._most - self._taken[sequence.link]
        return min(chunk, max(0, sequence.layout.prompt - sequence.computed) + left)


def within_links(decoding: list[Sequence], most: int) -> list[Sequence]:
    """At most `most` per link: those that waited longest, the oldest among equals."""
    rows: Counter[int | None] = Counter()
    chosen: set[tuple[int, int]] = set()
    for sequence in sorted(decoding, key=lambda s: (s.last_step, s.arrival)):
        rows[sequence.link] += 1
        if sequence.link is None or rows[sequence.link] <= most:
            chosen.add(sequence.id)
    return [sequence for sequence in decoding if sequence.id in chosen]
