"""When the events of one answer leave, so that its first token's time tells a step of a grid and no more (SafeKV §III).

The first event leaves at the next whole number of steps after the request came; all later ones as much later than they
were made. Then a prompt that was found computed and one that was not look the same from beginning to end, as far as
both take the same number of steps. The grid begins with the request: with one grid for all, a sender could choose the
moment between a hit and a miss. Knows no loop and no clock.
"""

from __future__ import annotations

from math import ceil


class Grid:
    """The first event leaves on the grid."""

    def __init__(self, step_s: float, begun: float) -> None:
        self._step = step_s
        self._begun = begun
        self._delay: float | None = None
        self._last = begun

    def leaves(self, now: float) -> float:
        """When what is made now may leave."""
        if self._delay is None:
            self._delay = self._begun + ceil((now - self._begun) / self._step) * self._step - now
        at = now + self._delay
        self._last = max(self._last, at)  # what is added and taken away again is rounded
        return self._last
