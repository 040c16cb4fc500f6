"""How many rows each link may still carry in one step: its memory holds so many queries and no more.

Knows links as numbers. Rows of a public span ask nobody, so they do not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from cloister.engine.batch import Work
from cloister.engine.sequence import Sequence


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
