"""How far each of λ+1 streams is, and how far they may be read: position p once every stream has one, or has ended.

A server that stops streams at different times would otherwise learn from the reader's next step which one it reads.
What may be read by when does not depend on which stream is real: nothing here knows.
"""

from __future__ import annotations

import math


class Positions:
    """Of streams by their number."""

    def __init__(self, streams: int) -> None:
        self._reached: list[float] = [0] * streams

    def advance(self, stream: int, by: int = 1) -> None:
        self._reached[stream] += by

    def end(self, stream: int) -> None:
        """This stream ended: the others need not wait for it."""
        self._reached[stream] = math.inf

    @property
    def readable(self) -> float:
        """How many positions of every stream may be read; infinite once all have ended."""
        return min(self._reached)
