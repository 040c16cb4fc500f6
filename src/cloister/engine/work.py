"""What one step computes, a chunk of each sequence that is scheduled, and how many rows of it each link carries.

A link's memory holds so many queries and no more. Links are numbers here. Rows of a public span ask nobody, so they do
not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cloister.compute.layout import Chunk, Wanted
from cloister.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence's share of a step; `samples` says that its last row yields the next token."""

    sequence: Sequence
    chunk: Chunk
    samples: bool

    @property
    def end(self) -> int:
        """Positions that are computed once this is done."""
        return self.chunk.start + len(self.chunk.tokens)

    @property
    def asked_rows(self) -> int:
        """Rows whose queries go over the sequence's link, once per layer: those of generated tokens."""
        layout = self.chunk.layout
        return max(0, self.end - max(self.chunk.start, layout.prompt)) if layout.remote else 0

    @property
    def rows(self) -> int:
        """Rows of logits this brings."""
        if self.chunk.wanted is Wanted.ALL:
            return len(self.chunk.tokens)
        return 1 if self.chunk.wanted is Wanted.LAST else 0


class LinkRows:
    """One step's rows, link by link."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[int, int] = {}

    def take(self, work: Iterable[Work]) -> None:
        """Count what is planned."""
        for part in work:
            if part.sequence.link is not None:
                self._taken[part.sequence.link] = self._taken.get(part.sequence.link, 0) + part.asked_rows

    def fitting(self, sequence: Sequence, chunk: int) -> int:
        """How many of the sequence's next `chunk` tokens may be computed in this step."""
        if sequence.link is None:
            return chunk
        left = self._most - self._taken.get(sequence.link, 0)
        return min(chunk, max(0, sequence.layout.prompt - sequence.computed) + left)


def within_links(decoding: list[Sequence], most: int) -> list[Sequence]:
    """Of sequences that decode, at most so many per link: those that have waited longest, the oldest among equals."""
    by_link: dict[int, list[Sequence]] = {}
    for sequence in decoding:
        if sequence.link is not None:
            by_link.setdefault(sequence.link, []).append(sequence)
    postponed: set[int] = set()
    for sequences in by_link.values():
        if len(sequences) > most:
            sequences.sort(key=lambda s: (s.last_step, s.arrival))
            postponed.update(sequence.request_id for sequence in sequences[most:])
    return [sequence for sequence in decoding if sequence.request_id not in postponed]
