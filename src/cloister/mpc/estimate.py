"""How far an answer is and how long a token takes, measured: what is told to who waits.

Knows counts and times. It knows neither tokens nor parties.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from cloister.messages.generation import Progress

SECONDS_BETWEEN_NEWS = 0.5
_WEIGHT_OF_THE_LAST = 0.5


class Pace:
    """One answer's passes through the layers. `before` is what answers took before this one, if any did."""

    def __init__(self, layers: int, before: float | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._layers = layers
        self._clock = clock
        self._before = before
        self._measured: float | None = None
        self._token = 1
        self._begun = clock()
        self._told = float("-inf")

    @property
    def seconds_per_token(self) -> float | None:
        """The recent tokens' seconds, the last counting half; those of earlier answers until there is one."""
        return self._before if self._measured is None else self._measured

    def pass_begins(self) -> None:
        """The parties are asked for the next tokens."""
        self._begun = self._clock()

    def layer_done(self, done: int) -> Progress | None:
        """So many layers are through; what to tell, if it is time to tell something."""
        now = self._clock()
        if now - self._told < SECONDS_BETWEEN_NEWS:
            return None
        self._told = now
        return Progress(self._token, min(done, self._layers), self._layers, self.seconds_per_token)

    def pass_done(self, tokens: int, *, prompt: bool = False) -> None:
        """It gave so many tokens. The prompt's own pass is no measure of those that follow."""
        self._token += tokens
        if prompt or not tokens:
            return
        spent = (self._clock() - self._begun) / tokens
        if self._measured is None:
            self._measured = spent
        else:
            self._measured += _WEIGHT_OF_THE_LAST * (spent - self._measured)
