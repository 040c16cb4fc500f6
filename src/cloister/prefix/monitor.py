"""Finds probing of public nodes that detection passed wrongly: rolling windows, entropy of users per hit, drift against
history (SafeKV §V-C, Equation 3).

    watched = monitor.watch(owner)  …  monitor.hit(watched, tenant, request) → whether to demote it

A node that one tenant made and used, and that other tenants suddenly try, looks probed and is demoted. A node that was
widely used before is not. The monitor handles names of tenants, numbers of requests and a clock; neither text nor
tokens nor the tree, which stores a record with each node.

Exposure is bounded (MonitorSettings.exposure). In a node's first window, each other tenant gets at most `repeats` hits.
If `broad` other tenants hit it in that window, it counts as popular and is not demoted. Otherwise it later serves
`probes` hits of other tenants in all, whatever identities they use. A demoted node stays private for `barred_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2
from time import monotonic

Hits = dict[str, int]
"""How often each tenant hit in one window."""
MAX_USERS = 16
"""Tenants that a window distinguishes; all others count as one."""
_OTHERS = ""


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """`window_s`: length of a window. `broad`: other tenants in a window that make a node popular (the paper's u_pre).
    `probes`: hits of other tenants on a node after its first window before it is demoted. `repeats`: hits of one other
    tenant on a new node. `entropy` (users per hit) and `drift` (Jensen–Shannon, in bits): thresholds from which a
    window looks probed. `barred_s`: how long a demoted node stays private, whatever labels come."""

    window_s: float = 60.0
    broad: int = 4
    probes: int = 8
    repeats: int = 8
    entropy: float = 0.5
    drift: float = 0.5
    barred_s: float = 3600.0

    @property
    def exposure(self) -> int:
        """The most hits of other tenants that a node serves before it is demoted, if it is not popular."""
        return max((self.broad - 1) * self.repeats, self.probes)


@dataclass(slots=True)
class Watched:
    """The record of one public node, two kilobytes at most."""

    owner: str
    made: float
    began: float
    now: Hits = field(default_factory=dict)
    before: Hits = field(default_factory=dict)
    popular: bool = False
    """Whether it was widely used in its first window."""
    foreign_hits: int = 0
    """Hits of tenants other than the owner since it became public."""
    request: int = -1
    """The last request: one that has to wait looks up again and gets the same answer."""
    probed: bool = False
    """The answer to the last request."""

    def copy(self) -> Watched:
        """For the second half of a node that is split."""
        return replace(self, now=dict(self.now), before=dict(self.before))

    def forget(self, tenant: str, heir: str) -> None:
        """Remove this tenant. A node that it owned becomes the heir's, which has a right to it too."""
        if self.owner == tenant:
            self.owner = heir
        for hits in (self.now, self.before):
            hits.pop(tenant, None)


@dataclass(frozen=True, slots=True)
class Alert:
    """The owner of a demoted node, and the last tenant to hit it. Two names; no content of the node."""

    owner: str
    suspect: str


class Monitor:
    """Calls `on_alert` for every demotion."""

    def __init__(
        self,
        settings: MonitorSettings | None = None,
        *,
        clock: Callable[[], float] = monotonic,
        on_alert: Callable[[Alert], None] | None = None,
    ) -> None:
        self._settings = settings or MonitorSettings()
        self._clock = clock
        self._on_alert = on_alert

    def watch(self, owner: str) -> Watched:
        """The record of a node that becomes public now."""
        return Watched(owner, (now := self._clock()), now)

    def barred_until(self) -> float:
        """Until when a node that is demoted now stays private."""
        return self._clock() + self._settings.barred_s

    def is_barred(self, until: float) -> bool:
        return self._clock() < until

    def hit(self, watched: Watched, tenant: str, request: int) -> bool:
        """Call before a public node is lent to this tenant. True: it looks probed; demote it and treat it as a miss."""
        self._roll(watched)
        if request != watched.request:
            watched.request, watched.probed = request, self._judge(watched, tenant)
        return watched.probed

    def _judge(self, watched: Watched, tenant: str) -> bool:
        name = tenant if tenant in watched.now or len(watched.now) < MAX_USERS else _OTHERS
        watched.now[name] = watched.now.get(name, 0) + 1
        if tenant == watched.owner:
            return False
        watched.foreign_hits += 1
        if not self._suspicious(watched, name):
            return False
        if self._on_alert is not None:
            self._on_alert(Alert(watched.owner, tenant))
        return True

    def _roll(self, watched: Watched) -> None:
        """Begin a new window if the last is over. A window without hits leaves no history."""
        elapsed = self._clock() - watched.began
        if elapsed < self._settings.window_s:
            return
        watched.before = watched.now if elapsed < 2 * self._settings.window_s else {}
        watched.now = {}
        watched.began += elapsed - elapsed % self._settings.window_s

    def _suspicious(self, watched: Watched, name: str) -> bool:
        settings = self._settings
        new = self._clock() - watched.made < settings.window_s
        if new and len(watched.now) - (watched.owner in watched.now) >= settings.broad:
            watched.popular = True
        if watched.popular:
            return False
        if new:  # a few users may not hit it often
            return watched.now[name] > settings.repeats
        return watched.foreign_hits > settings.probes or self._shifted(watched)

    def _shifted(self, watched: Watched) -> bool:
        """Whether other tenants than before hit it, each of them seldom."""
        shifted = drift(watched.before, watched.now) >= self._settings.drift
        return shifted and len(watched.now) > 2 and entropy(watched.now) >= self._settings.entropy


def entropy(hits: Hits) -> float:
    """u_cnt / hit_cnt (Equation 3): near 0 where one user hits often, 1 where every hit is another user's."""
    return len(hits) / sum(hits.values()) if hits else 0.0


def drift(before: Hits, now: Hits) -> float:
    """Jensen–Shannon divergence of the users' shares, in bits: 0 for the same shares, 1 for other users."""
    if not before or not now:
        return 0.0 if before == now else 1.0
    total_before, total_now = sum(before.values()), sum(now.values())
    result = 0.0
    for user in before.keys() | now.keys():
        one, other = before.get(user, 0) / total_before, now.get(user, 0) / total_now
        middle = (one + other) / 2
        result += sum(share * log2(share / middle) for share in (one, other) if share) / 2
    return min(1.0, max(0.0, result))
