"""How many tokens one step of computing may have: few beside other tenants, many alone.

Learned from how long earlier steps took, because that differs a hundredfold between machines and models. A step reads
all weights however few its tokens are, and then takes a little longer for each. Whatever the size, results are the same
bit for bit, so only times depend on it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

LONG_S = 0.5
"""What a step may last while one tenant is alone: so long the first request of another waits for it."""

SHORT_STEPS = 2.6
"""Beside other tenants a step lasts about as long as so many that compute one token: who decodes should not wait three
times as long as alone."""

LEAST_SHORT_S = 0.02
LEAST_TOKENS = 1
"""Late in a long prompt each token adds as much as a whole step of one that decodes, where the machine computes slowly
or the context is long."""
FIRST_TOKENS = 64
"""Before anything is learned."""

LINGER_S = 10.0
"""So long after its last request a tenant counts as here: who asks again soon finds steps short."""

_LEARN = 0.25


class Pace:
    """Steps of at most `most` tokens. `short` and `long` say how many tokens the next may have, `note` how long it
    took. Where others' steps come between ours, `note_between` says how long one of theirs took."""

    def __init__(self, most: int, short_steps: float = SHORT_STEPS) -> None:
        self._most = most
        self._short_steps = short_steps
        self._one: float | None = None
        """Seconds of a step of one token."""
        self._each: float | None = None
        """Seconds that each further token adds."""
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
        """How long a step of one token took that came between two of ours: what those who wait for it are used to."""
        self._between = _learned(self._between, seconds)

    def _within(self, seconds: float) -> int:
        if self._each is None:
            return min(FIRST_TOKENS, self._most)
        tokens = 1 + (seconds - (self._one or 0.0)) / max(self._each, 1e-9)
        return int(min(max(tokens, LEAST_TOKENS), self._most))


def _learned(known: float | None, seen: float) -> float:
    return seen if known is None else known + _LEARN * (seen - known)


class ActiveTenants:
    """Which tenants have requests here, or had some a moment ago."""

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
        """Whether there is more than one."""
        if len(self._present) + len(self._left) < 2:
            return False
        self._forget()
        return len(self._present) + len(self._left) > 1

    def _forget(self) -> None:
        """Those who left first stand first."""
        past = self._clock() - LINGER_S
        while self._left and self._left[first := next(iter(self._left))] < past:
            del self._left[first]
