"""The tenants: whose requests wait for a place, and how much service each tenant has had.

Tenants are opaque strings and service is a number. The scheduler decides whose turn it is.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, KeysView

from cloister.engine.sequence import Sequence
from cloister.errors import QueueFull

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2

_MAX_RETRY_S = 60
_IDLE_REMEMBERED = 64


class WaitingRoom:
    """First come, first served within a tenant; any sequence can leave at any time in O(1)."""

    def __init__(self, limit: int, limit_per_tenant: int) -> None:
        self._limit = limit
        self._limit_per_tenant = limit_per_tenant
        self._lines: dict[str, OrderedDict[int, Sequence]] = {}
        self._count = 0
        self._departures: deque[float] = deque(maxlen=64)

    def __len__(self) -> int:
        return self._count

    @property
    def tenants(self) -> KeysView[str]:
        return self._lines.keys()

    def head(self, tenant: str) -> Sequence:
        return next(iter(self._lines[tenant].values()))

    def enter(self, sequence: Sequence) -> None:
        """Join the end of the tenant's line, or raise QueueFull."""
        if self._count >= self._limit:
            raise QueueFull(f"{self._count} requests wait already.", retry_after=self._retry_after(self._count))
        mine = len(self._lines.get(sequence.tenant, ()))
        if mine >= self._limit_per_tenant:
            raise QueueFull(f"{mine} of your requests wait already.", retry_after=self._retry_after(mine))
        self._line(sequence.tenant)[sequence.request_id] = sequence
        self._count += 1

    def return_first(self, sequence: Sequence) -> None:
        """Take a preempted sequence back, at the front and whatever the limits."""
        line = self._line(sequence.tenant)
        line[sequence.request_id] = sequence
        line.move_to_end(sequence.request_id, last=False)
        self._count += 1

    def leave(self, sequence: Sequence) -> None:
        """Leave the line: to run, or for good."""
        line = self._lines[sequence.tenant]
        del line[sequence.request_id]
        if not line:
            del self._lines[sequence.tenant]
        self._count -= 1

    def note_departure(self) -> None:
        """A request ended: `retry_after` is guessed from the pace of these."""
        self._departures.append(time.monotonic())

    def _line(self, tenant: str) -> OrderedDict[int, Sequence]:
        return self._lines.setdefault(tenant, OrderedDict())

    def _retry_after(self, ahead: int) -> int:
        """Seconds until about half of those ahead have gone, at the recent pace."""
        if len(self._departures) < 2:
            return 1
        pace = len(self._departures) / max(time.monotonic() - self._departures[0], 1e-3)
        return max(1, min(_MAX_RETRY_S, math.ceil(ahead / 2 / pace)))


class ServiceMeter:
    """Weighted tokens served per tenant, comparable among the tenants that have requests here.

    The virtual token counter of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, section 4).
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}

    @property
    def active(self) -> int:
        """Tenants with at least one request waiting or running."""
        return len(self._live)

    def served(self, tenant: str) -> int:
        return self._served.get(tenant, 0)

    def arrive(self, tenant: str) -> None:
        """A request came. A tenant that had none is lifted to the least served one: idling saves up nothing."""
        if tenant not in self._live:
            floor = min((self._served[other] for other in self._live), default=0)
            self._served[tenant] = max(self.served(tenant), floor)
        self._live[tenant] = self._live.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        self._live[tenant] -= 1
        if self._live[tenant] == 0:
            del self._live[tenant]
            self._forget()

    def charge(self, tenant: str, *, inputs: int = 0, outputs: int = 0) -> None:
        self._served[tenant] += INPUT_WEIGHT * inputs + OUTPUT_WEIGHT * outputs

    def most_served(self, tenants: Iterable[str]) -> str:
        """The tenant that has had most; among equals the last by name, so that the choice is repeatable."""
        return max(tenants, key=lambda tenant: (self._served[tenant], tenant))

    def _forget(self) -> None:
        """Drop counters that a re-arrival would lift anyway: tenants who never return cost no memory."""
        if not self._live:
            self._served.clear()
        elif len(self._served) > 2 * len(self._live) + _IDLE_REMEMBERED:
            floor = min(self._served[tenant] for tenant in self._live)
            self._served = {t: n for t, n in self._served.items() if t in self._live or n > floor}
