"""Requests that are computed only while no other request is active: any other stops the one that runs. No timeout."""

from __future__ import annotations

from collections import deque

from cloister.engine.request import EngineRequest
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
        """The next request, which runs from now on."""
        if self.waiting and self._running is None:
            self._running = self.waiting.popleft()
            return self._running
        return None

    def put_back(self) -> EngineRequest | None:
        """The running request waits again, first in line."""
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
