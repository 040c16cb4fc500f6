"""How often a tenant's vaults and the service disagreed, and how often the service was ended for it."""

import logging
from collections import deque
from dataclasses import dataclass
from time import monotonic

from cloister.controller.requests import OWN_TENANTS

log = logging.getLogger(__name__)

MOST_KEPT = 1024  # troubles of one tenant that are remembered
MOST_TROUBLES = 3  # deviations and lost links of one tenant in an hour: its own vaults may be what deviates
MOST_RESTARTS = 12  # for deviations in an hour, of all tenants: accounts whose vaults lie must not keep the node down
HOUR_S = 3600.0
FAULT_S = 2.0  # a GPU's fault ends vaults first, then the service


@dataclass(frozen=True, slots=True, eq=False)
class _Trouble:
    at: float
    aborted: bool


class Deviations:
    def __init__(self) -> None:
        self._troubles: dict[str, deque[_Trouble]] = {}
        self._restarts: deque[float] = deque(maxlen=MOST_RESTARTS)

    def note(self, owner: str, *, aborted: bool = False) -> None:
        """Not of the node's own trials: they shall go on to try the service."""
        last_hour = monotonic() - HOUR_S
        self._troubles = {each: some for each, some in self._troubles.items() if some and some[-1].at > last_hour}
        if owner not in OWN_TENANTS:
            self._troubles.setdefault(owner, deque(maxlen=MOST_KEPT)).append(_Trouble(monotonic(), aborted))

    def too_many_of(self, owner: str) -> bool:
        """Then its answers are its vaults' alone: one user must not end the service for all."""
        recent = self._troubles.get(owner, deque())
        while recent and recent[0].at < monotonic() - HOUR_S:
            recent.popleft()
        return len(recent) >= MOST_TROUBLES

    @property
    def restarted_often(self) -> bool:
        return len(self._restarts) == MOST_RESTARTS and self._restarts[0] > monotonic() - HOUR_S

    def restarts(self) -> bool:
        """Whether the service is ended for one more."""
        if restarts := not self.restarted_often:
            self._restarts.append(monotonic())
        if self.restarted_often:
            log.error("%d deviations in an hour: now every answer is verified before it leaves.", MOST_RESTARTS)
        return restarts

    def service_gone(self) -> None:
        """Links lost just before its end are one trouble: the same fault may have broken them all."""
        for troubles in self._troubles.values():
            late = [one for one in troubles if one.aborted and one.at >= monotonic() - FAULT_S]
            for one in late[1:]:
                troubles.remove(one)
