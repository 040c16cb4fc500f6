"""Requests that are computed only while no other request is active. They wait here; one at a time runs.

Any other request stops the one that runs, so they never share a step; it starts again later. There is no timeout: the
sender cancels a request that waits too long.
"""

from __future__ import annotations

from collections import deque

from cloister.errors import QueueFull
from cloister.messages.generation import Submit

MAX_WAITING = 4


class Background:
    def __init__(self) -> None:
        self.waiting: deque[Submit] = deque()
        self._running: Submit | None = None

    def __contains__(self, request: Submit) -> bool:
        return any(each.request_id == request.request_id for each in self.waiting)

    def add(self, request: Submit) -> None:
        if len(self.waiting) >= MAX_WAITING:
            raise QueueFull("Too many requests wait in the background.")
        self.waiting.append(request)

    def begin(self) -> Submit | None:
        """The next request, which runs from now on; None if there is none."""
        if self.waiting and self._running is None:
            self._running = self.waiting.popleft()
            return self._running
        return None

    def put_back(self) -> Submit | None:
        """The running request waits again, first in line; None if none runs."""
        request, self._running = self._running, None
        if request is not None:
            self.waiting.appendleft(request)
        return request

    def ended(self, request_id: int) -> None:
        if self._running is not None and self._running.request_id == request_id:
            self._running = None

    def drop(self, request_id: int) -> bool:
        """Remove a waiting request. False if it does not wait."""
        before = len(self.waiting)
        self.waiting = deque(each for each in self.waiting if each.request_id != request_id)
        return len(self.waiting) < before
