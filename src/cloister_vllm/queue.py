"""Requests that wait for a place at vLLM: the tenant with least service goes first, and of one the first that came."""

from collections import deque

from cloister.config import EngineSettings
from cloister.engine.base import EngineRequest
from cloister.errors import QueueFull
from cloister.fairness import ServiceMeter, payer_of


class Queue:
    def __init__(self, settings: EngineSettings, meter: ServiceMeter) -> None:
        self._most, self._most_of_one = settings.max_waiting, settings.max_waiting_per_tenant
        self._meter = meter
        self._lines: dict[str, deque[EngineRequest]] = {}  # by payer

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, request_id: int) -> bool:
        return any(one.request_id == request_id for line in self._lines.values() for one in line)

    def enter(self, request: EngineRequest) -> None:
        payer = payer_of(request.tenant)
        if len(self) >= self._most or len(self._lines.get(payer, ())) >= self._most_of_one:
            raise QueueFull("Too many requests are waiting.", retry_after=1)
        self._lines.setdefault(payer, deque()).append(request)

    def first(self) -> EngineRequest | None:
        if not self._lines:
            return None
        return self._lines[min(self._lines, key=lambda one: (self._meter.served(one), one))][0]

    def leave(self, request_id: int) -> EngineRequest | None:
        for payer, line in list(self._lines.items()):
            for request in line:
                if request.request_id == request_id:
                    line.remove(request)
                    if not line:
                        del self._lines[payer]
                    return request
        return None

    def leave_all_on(self, link: int) -> list[EngineRequest]:
        """Those whose prompts are in the vault at this link."""
        waiting = [one for line in self._lines.values() for one in line if one.partitions]
        found = [one for one in waiting if one.partitions[0].link == link]
        for each in found:
            self.leave(each.request_id)
        return found
