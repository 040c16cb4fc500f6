"""What the service's monitor says of probing (SafeKV §V-C): for the operator's log, and for the detector, which is more
careful with the prompts of who probes and of who is probed (§V-D).

The service is not trusted: what it can cause is a line of our own words now and then, and fewer hits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic

from cloister.messages.controller_service import Probed

log = logging.getLogger(__name__)

HALF_LIFE_S = 60.0
TOLD_EVERY_S = 60.0


class Probes:
    """Of tenants that have a key; `keep_only` says which."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._tenants: frozenset[str] = frozenset()
        self._suspected: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def keep_only(self, tenants: frozenset[str]) -> None:
        self._tenants = tenants
        self._suspected = {name: at for name, at in self._suspected.items() if name in tenants}
        self._told = {name: at for name, at in self._told.items() if name in tenants}

    def handle(self, message: Probed) -> None:
        """Names that are nobody's are not repeated."""
        if not {message.owner, message.suspect} <= self._tenants:
            return
        now = self._clock()
        self._suspected[message.owner] = self._suspected[message.suspect] = now
        if now - self._told.get(message.owner, float("-inf")) >= TOLD_EVERY_S:
            self._told[message.owner] = now
            log.warning("A shared prompt of tenant %r looks probed: it is private again.", message.owner)

    def suspicion(self, tenant: str) -> float:
        """From 0 to 1; it halves with every minute."""
        if (last := self._suspected.get(tenant)) is None:
            return 0.0
        return float(2.0 ** -((self._clock() - last) / HALF_LIFE_S))
