"""Finds probing of public nodes: rolling windows, entropy of users per hit, drift (SafeKV §V-C, Equation 3).
A node that one tenant made and used, and that other tenants suddenly try, looks probed and is demoted. Exposure is
bounded (MonitorSettings.exposure). In a node's first window, each other tenant gets at most `repeats` hits. If `broad`
others hit it in that window, it is popular and is not demoted. Otherwise it later serves `probes` hits of others in
all, whatever identities they use. A demoted node stays private for `barred_s`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2
from time import monotonic

Hits = dict[str, int]  # of each tenant, in one window
MAX_USERS = 16  # that a window distinguishes; all others count as one
_OTHERS = ""


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """`broad`: the paper's u_pre. `entropy` is users per hit; `drift` is Jensen–Shannon, in bits."""

    window_s: float = 60.0
    broad: int = 4
    probes: int = 8
    repeats: int = 8
    entropy: float = 0.5
    drift: float = 0.5
    barred_s: float = 3600.0

    @property
    def exposure(self) -> int:
        return max((self.broad - 1) * self.repeats, self.probes)


@dataclass(slots=True)
class Watched:
    owner: str
    made: float
    began: float
    now: Hits = field(default_factory=dict)
    before: Hits = field(default_factory=dict)
    popular: bool = False  # widely used in its first window
    foreign_hits: int = 0  # of tenants other than the owner, since it became public
    request: int = -1  # the last: a request that has to wait looks up again and gets the same answer
    probed: bool = False

    def copy(self) -> Watched:
        return replace(self, now=dict(self.now), before=dict(self.before))

    def forget(self, tenant: str, heir: str) -> None:
        """A node that this tenant owned becomes the heir's, which has a right to it too."""
        if self.owner == tenant:
            self.owner = heir
        for hits in (self.now, self.before):
            hits.pop(tenant, None)


@dataclass(frozen=True, slots=True)
class Alert:
    owner: str
    suspect: str


class Monitor:
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
        return Watched(owner, (now := self._clock()), now)

    def barred_until(self) -> float:
        return self._clock() + self._settings.barred_s

    def is_barred(self, until: float) -> bool:
        return self._clock() < until

    def hit(self, watched: Watched, tenant: str, request: int) -> bool:
        """Call before a public node is lent. True: it looks probed; demote it and treat it as a miss."""
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
        """A window without hits leaves no history."""
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
