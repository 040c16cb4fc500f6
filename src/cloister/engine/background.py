"""Requests that are computed only while there is nobody else: they wait here, one at a time runs.

Whoever else comes stops the one that runs, so that no step of others is shared with it; it begins anew later. What
waits too long is for whoever sent it to cancel.
"""

from __future__ import annotations

from collections import deque

from cloister.engine.request import GenerationRequest
from cloister.errors import QueueFull

MOST_WAITING = 4


class Background:
    def __init__(self) -> None:
        self.waiting: deque[GenerationRequest] = deque()
        self._running: GenerationRequest | None = None

    def __contains__(self, request: GenerationRequest) -> bool:
        return any(each.request_id == request.request_id for each in self.waiting)

    def add(self, request: GenerationRequest) -> None:
        """QueueFull if there are many."""
        if len(self.waiting) >= MOST_WAITING:
            raise QueueFull("Too many requests wait in the background.")
        self.waiting.append(request)

    def begin(self) -> GenerationRequest | None:
        """The next one, which runs from now on; None if there is none."""
        if self.waiting and self._running is None:
            self._running = self.waiting.popleft()
            return self._running
        return None

    def put_back(self) -> GenerationRequest | None:
        """The one that runs waits again, as the next to begin; None if none runs."""
        request, self._running = self._running, None
        if request is not None:
            self.waiting.appendleft(request)
        return request

    def ended(self, request_id: int) -> None:
        if self._running is not None and self._running.request_id == request_id:
            self._running = None

    def drop(self, request_id: int) -> bool:
        """Whether it waited; it does no more."""
        found = [each for each in self.waiting if each.request_id == request_id]
        for each in found:
            self.waiting.remove(each)
        return bool(found)
