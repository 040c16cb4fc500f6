"""Requests that wait: sequences in one queue per tenant; and background requests, which run while no other is active.
Any other request stops the background request that runs, so they never share a step."""

import math
import time
from collections import OrderedDict, deque
from collections.abc import KeysView

from cloister.engine.base import EngineRequest
from cloister.engine.sequence import Sequence
from cloister.errors import QueueFull

MAX_WAITING = 4


class Background:
    def __init__(self) -> None:
        self.waiting: deque[EngineRequest] = deque()
        self._running: EngineRequest | None = None

    def __contains__(self, request: EngineRequest) -> bool:
        return any(each.request_id == request.request_id for each in self.waiting)

    def add(self, request: EngineRequest) -> None:
        if len(self.waiting) >= MAX_WAITING:
            raise QueueFull("Too many requests wait in the background.")
        self.waiting.append(request)

    def begin(self) -> EngineRequest | None:
        if self.waiting and self._running is None:
            self._running = self.waiting.popleft()
            return self._running
        return None

    def put_back(self) -> EngineRequest | None:
        request, self._running = self._running, None
        if request is not None:
            self.waiting.appendleft(request)
        return request

    def ended(self, request_id: int) -> None:
        if self._running is not None and self._running.request_id == request_id:
            self._running = None

    def drop(self, request_id: int) -> bool:
        before = len(self.waiting)
        self.waiting = deque(each for each in self.waiting if each.request_id != request_id)
        return len(self.waiting) < before


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
        mine = len(self._lines.get(sequence.tenant, ()))
        if mine >= self._limit_per_tenant:
            raise QueueFull(f"{mine} of your requests wait already.", retry_after=self._retry_after(mine))
        self._line(sequence.tenant)[sequence.id] = sequence
        self._count += 1

    def return_first(self, sequence: Sequence) -> None:
        line = self._line(sequence.tenant)
        line[sequence.id] = sequence
        line.move_to_end(sequence.id, last=False)
        self._count += 1

    def leave(self, sequence: Sequence) -> None:
        line = self._lines[sequence.tenant]
        del line[sequence.id]
        if not line:
            del self._lines[sequence.tenant]
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
