"""How far λ+1 streams may be read: position p once every stream has one, or has ended. Otherwise a server that stops
streams at different times would learn from the reader's next step which one is real."""

import math


class Positions:
    def __init__(self, streams: int) -> None:
        self._reached: list[float] = [0] * streams

    def advance(self, stream: int, by: int = 1) -> None:
        self._reached[stream] += by

    def end(self, stream: int) -> None:
        self._reached[stream] = math.inf

    @property
    def readable(self) -> float:
        """Infinite once all streams have ended."""
        return min(self._reached)
