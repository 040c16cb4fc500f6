"""How many tokens one step of computing may have: few while several tenants are active. Results do not depend on it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

LONG_S = 0.5  # duration of a step while one tenant is alone: the first request of another tenant waits that long
SHORT_STEPS = 2.6  # a decoding request should not wait three times as long as it would alone
LEAST_SHORT_S = 0.02
LEAST_TOKENS = 1  # on a slow machine each prompt token can cost a step
FIRST_TOKENS = 64  # before anything is learned
LINGER_S = 10.0  # a tenant counts as active for this long after its last request
_LEARN = 0.25


class Pace:
    """`note` records how long a step took, and `note_between` a step of another process in between."""

    def __init__(self, most: int, short_steps: float = SHORT_STEPS) -> None:
        self._most = most
        self._short_steps = short_steps
        self._one: float | None = None  # seconds of a step of one token
        self._each: float | None = None  # seconds that each further token adds
        self._between: float | None = None

    @property
    def short(self) -> int:
        step = self._one if self._between is None else self._between
        return self._within(max(LEAST_SHORT_S, self._short_steps * (step or 0.0)))

    @property
    def long(self) -> int:
        return max(self.short, self._within(LONG_S))

    def note(self, tokens: int, seconds: float) -> None:
        if tokens == 1:
            self._one = _learned(self._one, seconds)
        else:
            self._each = _learned(self._each, max(seconds - (self._one or 0.0), 0.0) / (tokens - 1))

    def note_between(self, seconds: float) -> None:
        self._between = _learned(self._between, seconds)

    def _within(self, seconds: float) -> int:
        if self._each is None:
            return min(FIRST_TOKENS, self._most)
        tokens = 1 + (seconds - (self._one or 0.0)) / max(self._each, 1e-9)
        return int(min(max(tokens, LEAST_TOKENS), self._most))


def _learned(known: float | None, seen: float) -> float:
    return seen if known is None else known + _LEARN * (seen - known)


class ActiveTenants:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._present: Counter[str] = Counter()
        self._left: dict[str, float] = {}

    def arrive(self, tenant: str) -> None:
        self._present[tenant] += 1
        self._left.pop(tenant, None)

    def leave(self, tenant: str) -> None:
        self._present[tenant] -= 1
        if self._present[tenant] <= 0:
            del self._present[tenant]
            self._forget()
            self._left[tenant] = self._clock()

    @property
    def several(self) -> bool:
        if len(self._present) + len(self._left) < 2:
            return False
        self._forget()
        return len(self._present) + len(self._left) > 1

    def _forget(self) -> None:
        """The dictionary is in the order of leaving."""
        past = self._clock() - LINGER_S
        while self._left and self._left[first := next(iter(self._left))] < past:
            del self._left[first]
