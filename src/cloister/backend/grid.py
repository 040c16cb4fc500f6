"""When the events of one answer leave, so that its first token's time tells a step of a grid and no more (SafeKV §III).

The first event leaves at the next whole number of steps after the request came; all later ones as much later than they
were made. Then a prompt that was found computed and one that was not look alike from beginning to end, as far as both
take the same number of steps. The grid begins with the request: were it everybody's, a sender could choose the moment
between a hit and a miss. Knows no loop and no clock.
"""

from __future__ import annotations

from math import ceil


class Grid:
    """`held`: how many events leave on the grid. At a level whose first token is made elsewhere it is two: what the
    service found shows in the second."""

    def __init__(self, step_s: float, begun: float, held: int = 1) -> None:
        self._step = step_s
        self._begun = begun
        self._held = held
        self._delay = 0.0
        self._last = begun

    def leaves(self, now: float) -> float:
        """When what is made now may leave."""
        at = now + self._delay
        if self._held:
            self._held -= 1
            at = self._begun + ceil((at - self._begun) / self._step) * self._step
            self._delay = at - now
        self._last = max(self._last, at)  # what is added and taken away again is rounded
        return self._last
