"""Which of the backend's requests belong to an answer a caller knows by its id, for as long as somebody may ask.

Numbers and names only; nothing of what was asked or answered.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

MOST = 4096
KEPT_S = 60.0


@dataclass(slots=True)
class WatchedAnswer:
    """An answer's owner and level, and the backend's request for each choice that has begun."""

    id: str
    tenant: str
    level: str
    requests: dict[int, int] = field(default_factory=dict)
    ended: float | None = None


class WatchedAnswers:
    """The answers under way and those that ended a short while ago. When there are too many, the oldest go."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: OrderedDict[str, WatchedAnswer] = OrderedDict()
        self._ended: OrderedDict[str, WatchedAnswer] = OrderedDict()

    def begin(self, answer: WatchedAnswer) -> None:
        self._forget_old()
        while len(self._running) + len(self._ended) >= MOST:
            (self._ended or self._running).popitem(last=False)
        self._running[answer.id] = answer

    def end(self, answer: WatchedAnswer) -> None:
        answer.ended = self._clock()
        if self._running.pop(answer.id, None) is not None:
            self._ended[answer.id] = answer

    def find(self, answer_id: str, tenant: str) -> WatchedAnswer | None:
        """The answer, if it is this tenant's; another's is as unknown as one that never was."""
        self._forget_old()
        answer = self._running.get(answer_id) or self._ended.get(answer_id)
        return answer if answer is not None and answer.tenant == tenant else None

    def _forget_old(self) -> None:
        oldest = self._clock() - KEPT_S
        while self._ended:
            first = next(iter(self._ended.values()))
            if first.ended is None or first.ended >= oldest:
                return
            self._ended.popitem(last=False)
