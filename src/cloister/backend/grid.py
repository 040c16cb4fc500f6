"""When the events of one answer leave, so that its first token's time tells a step of a grid and no more (SafeKV §III).
All later events leave as much later than they were made. The grid begins with the request: with one grid for all, a
sender could choose the moment between a hit and a miss."""

from __future__ import annotations

from math import ceil


class Grid:
    def __init__(self, step_s: float, begun: float) -> None:
        self._step = step_s
        self._begun = begun
        self._delay: float | None = None
        self._last = begun

    def leaves(self, now: float) -> float:
        if self._delay is None:
            self._delay = self._begun + ceil((now - self._begun) / self._step) * self._step - now
        at = now + self._delay
        self._last = max(self._last, at)  # what is added and taken away again is rounded
        return self._last
