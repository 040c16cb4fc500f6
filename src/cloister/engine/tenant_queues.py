"""Sequences that wait for a place in the engine."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import KeysView

from cloister.engine.sequence import Sequence
from cloister.errors import QueueFull

_MAX_RETRY_S = 60


class TenantQueues:
    """First come, first served within a tenant; any sequence can leave at any time in O(1)."""

    def __init__(self, limit: int, limit_per_tenant: int) -> None:
        self._limit = limit
        self._limit_per_tenant = limit_per_tenant
        self._lines: dict[str, OrderedDict[tuple[int, int], Sequence]] = {}
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
        if self._count >= self._limit:
            raise QueueFull(f"{self._count} requests wait already.", retry_after=self._retry_after(self._count))
        mine = len(self._lines.get(sequence.payer, ()))
        if mine >= self._limit_per_tenant:
            raise QueueFull(f"{mine} of your requests wait already.", retry_after=self._retry_after(mine))
        self._line(sequence.payer)[sequence.id] = sequence
        self._count += 1

    def return_first(self, sequence: Sequence) -> None:
        line = self._line(sequence.payer)
        line[sequence.id] = sequence
        line.move_to_end(sequence.id, last=False)
        self._count += 1

    def leave(self, sequence: Sequence) -> None:
        line = self._lines[sequence.payer]
        del line[sequence.id]
        if not line:
            del self._lines[sequence.payer]
        self._count -= 1

    def note_departure(self) -> None:
        """`retry_after` is guessed from the pace of departures."""
        self._departures.append(time.monotonic())

    def _line(self, tenant: str) -> OrderedDict[tuple[int, int], Sequence]:
        return self._lines.setdefault(tenant, OrderedDict())

    def _retry_after(self, ahead: int) -> int:
        """Seconds until about half of those ahead have gone, at the recent pace."""
        if len(self._departures) < 2:
            return 1
        pace = len(self._departures) / max(time.monotonic() - self._departures[0], 1e-3)
        return max(1, min(_MAX_RETRY_S, math.ceil(ahead / 2 / pace)))
