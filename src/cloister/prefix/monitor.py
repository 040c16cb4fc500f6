"""What detection missed shows in who hits a run of public pages: rolling windows, entropy of users per hit, drift
against history (SafeKV §V-C, Equation 3).

    watched = monitor.watch(owner)  …  monitor.hit(watched, tenant, request) → whether to demote it

A run that one user made and used, and that others suddenly try, looks probed, and is demoted at once. What was widely
used before may go on so. The paper serves what a business marked as public at a moderate rate instead; here a mark
makes nothing visible to others. Knows names of tenants, numbers of requests and a clock; neither text nor tokens nor
the tree, which keeps a record with each run.

The exposure of a run is bounded (MonitorSettings.exposure). In its first window at most `repeats` hits by
each stranger are served, of whom there are fewer than `broad`: that many at once cannot be told from popularity, and
are taken for it. If it was not popular by then, no more than `probes` hits by strangers are served in all, whoever they
pretend to be. Then it stays private for `barred_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import log2
from time import monotonic

Hits = dict[str, int]
"""Of one window: how often each tenant hit."""
MOST_USERS = 16
"""That a window tells apart; all others count as one."""
_OTHERS = ""


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """`window_s`: how long a window is. `broad`: strangers in a window that make a run widely used (the paper's u_pre).
    `probes`: strangers' hits on a run after a quiet window before it is demoted. `repeats`: hits of one stranger on a
    new run. `entropy` (users per hit) and `drift` (Jensen–Shannon, in bits): from which a window looks probed.
    `barred_s`: how long what was demoted stays private, whatever a detector says."""

    window_s: float = 60.0
    broad: int = 4
    probes: int = 8
    repeats: int = 8
    entropy: float = 0.5
    drift: float = 0.5
    barred_s: float = 3600.0

    @property
    def exposure(self) -> int:
        """Hits by strangers that a run serves at most before it is demoted, if it is not popular."""
        return max((self.broad - 1) * self.repeats, self.probes)


@dataclass(slots=True)
class Watched:
    """What is known of one public run, in two kilobytes at most."""

    owner: str
    made: float
    began: float
    now: Hits = field(default_factory=dict)
    before: Hits = field(default_factory=dict)
    popular: bool = False
    """Whether it was widely used in its first window."""
    strangers: int = 0
    """Hits by others than the owner since it became public."""
    request: int = -1
    """Who asked last: one that has to wait asks again, and is answered the same."""
    probed: bool = False
    """What it was answered."""

    def copy(self) -> Watched:
        """For the second half of a run that is cut in two."""
        return replace(self, now=dict(self.now), before=dict(self.before))

    def forget(self, tenant: str, heir: str) -> None:
        """Keep nothing of this tenant; a run that it brought is `heir`'s, who has a right to it too."""
        if self.owner == tenant:
            self.owner = heir
        for hits in (self.now, self.before):
            hits.pop(tenant, None)


@dataclass(frozen=True, slots=True)
class Alert:
    """Whose run looked probed and was demoted, and who was the last to hit it. Names of tenants, nothing of the run."""

    owner: str
    suspect: str


class Monitor:
    """`on_alert` hears of every demotion."""

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
        """The record of a run that becomes public now."""
        return Watched(owner, (now := self._clock()), now)

    def barred_until(self) -> float:
        """Until when a run that is demoted now stays private."""
        return self._clock() + self._settings.barred_s

    def is_barred(self, until: float) -> bool:
        return self._clock() < until

    def hit(self, watched: Watched, tenant: str, request: int) -> bool:
        """Somebody is about to be lent a public run: whether it looks probed. Then it is a miss, and private now."""
        self._roll(watched)
        if request != watched.request:
            watched.request, watched.probed = request, self._judge(watched, tenant)
        return watched.probed

    def _judge(self, watched: Watched, tenant: str) -> bool:
        name = tenant if tenant in watched.now or len(watched.now) < MOST_USERS else _OTHERS
        watched.now[name] = watched.now.get(name, 0) + 1
        if tenant == watched.owner:
            return False
        watched.strangers += 1
        if not self._suspicious(watched, name):
            return False
        if self._on_alert is not None:
            self._on_alert(Alert(watched.owner, tenant))
        return True

    def _roll(self, watched: Watched) -> None:
        """Begin a new window if the last is over; one that passed without a hit leaves no history."""
        elapsed = self._clock() - watched.began
        if elapsed < self._settings.window_s:
            return
        watched.before = watched.now if elapsed < 2 * self._settings.window_s else {}
        watched.now = {}
        watched.began += elapsed - elapsed % self._settings.window_s

    def _suspicious(self, watched: Watched, name: str) -> bool:
        settings = self._settings
        new = self._clock() - watched.made < settings.window_s
        if new and _strangers(watched, watched.now) >= settings.broad:
            watched.popular = True
        if watched.popular:
            return False
        if new:  # few users must not insist
            return watched.now[name] > settings.repeats
        return watched.strangers > settings.probes or self._shifted(watched)

    def _shifted(self, watched: Watched) -> bool:
        """Whether others than before hit it, each of them seldom."""
        shifted = drift(watched.before, watched.now) >= self._settings.drift
        return shifted and len(watched.now) > 2 and entropy(watched.now) >= self._settings.entropy


def _strangers(watched: Watched, hits: Hits) -> int:
    return len(hits) - (watched.owner in hits)


def entropy(hits: Hits) -> float:
    """u_cnt / hit_cnt (Equation 3): near 0 where one user hits often, 1 where every hit is another's."""
    return len(hits) / sum(hits.values()) if hits else 0.0


def drift(before: Hits, now: Hits) -> float:
    """Jensen–Shannon divergence of who hits, in bits: 0 for the same users in the same shares, 1 for others."""
    if not before or not now:
        return 0.0 if before == now else 1.0
    total_before, total_now = sum(before.values()), sum(now.values())
    result = 0.0
    for user in before.keys() | now.keys():
        one, other = before.get(user, 0) / total_before, now.get(user, 0) / total_now
        middle = (one + other) / 2
        result += sum(share * log2(share / middle) for share in (one, other) if share) / 2
    return min(1.0, max(0.0, result))
