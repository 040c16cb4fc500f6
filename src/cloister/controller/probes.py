"""The service monitor's reports of probing (SafeKV §V-C), for the operator's log and for the detector (§V-D). The
service is not trusted: a false report costs a line in the log now and then, and cache hits."""

import logging
from collections.abc import Callable
from time import monotonic

from cloister.messages.controller_service import Probed

log = logging.getLogger(__name__)
HALF_LIFE_S = 60.0
LOG_EVERY_S = 60.0


class Probes:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._tenants: frozenset[str] = frozenset()
        self._suspected: dict[str, float] = {}
        self._logged: dict[str, float] = {}

    def keep_only(self, tenants: frozenset[str]) -> None:
        self._tenants = tenants
        self._suspected = {name: at for name, at in self._suspected.items() if name in tenants}
        self._logged = {name: at for name, at in self._logged.items() if name in tenants}

    def handle(self, message: Probed) -> None:
        """Names of unknown tenants are not logged."""
        if not {message.owner, message.suspect} <= self._tenants:
            return
        now = self._clock()
        self._suspected[message.owner] = self._suspected[message.suspect] = now
        if now - self._logged.get(message.owner, float("-inf")) >= LOG_EVERY_S:
            self._logged[message.owner] = now
            log.warning("A shared prompt of tenant %r looks probed: it is private again.", message.owner)

    def suspicion(self, tenant: str) -> float:
        """From 0 to 1; it halves with every minute."""
        if (last := self._suspected.get(tenant)) is None:
            return 0.0
        return float(2.0 ** -((self._clock() - last) / HALF_LIFE_S))
