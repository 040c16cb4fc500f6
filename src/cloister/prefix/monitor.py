"""What detection missed shows in who hits a run of public pages: rolling windows, entropy of users per hit, drift
against history (SafeKV §V-C, Equation 3).

    watched = monitor.watch(owner)  …  monitor.hit(watched, tenant, request) → None | DEMOTE | THROTTLE

A run that one user made and used, and that others suddenly try, looks probed. A customer's is demoted at once; a
business's own (which a request marked as public: a system prompt, say) is served to each stranger at a moderate rate,
and its owner told. What was widely used before may go on so. Knows names of tenants, numbers of requests and a clock;
neither text nor tokens nor the tree, which keeps a record with each run.

The exposure of a customer's run is bounded (MonitorSettings.exposure). In its first window at most `repeats` hits by
each stranger are served, of whom there are fewer than `broad`: that many at once cannot be told from popularity, and
are taken for it. If it was not popular by then, no more than `probes` hits by strangers are served in all, whoever they
pretend to be. Then it stays private for `barred_s`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from math import log2
from time import monotonic

Hits = dict[str, int]
"""Of one window: how often each tenant hit."""
MOST_USERS = 16
"""That a window tells apart; all others count as one."""
_OTHERS = ""


class Action(Enum):
    """Either is a miss for who asks. DEMOTE: private from now on. THROTTLE: this time."""

    DEMOTE = "demote"
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """`window_s`: how long a window is. `broad`: strangers in a window that make a run widely used (the paper's u_pre).
    `probes`: strangers' hits on a run after a quiet window before it is demoted. `repeats`: hits of one stranger on a
    new run. `entropy` (users per hit) and `drift` (Jensen–Shannon, in bits): from which a window looks probed.
    `moderate`: hits of one stranger on a business's run that are served in a window. `barred_s`: how long what was
    demoted stays private, whatever a detector says."""

    window_s: float = 60.0
    broad: int = 4
    probes: int = 8
    repeats: int = 8
    entropy: float = 0.5
    drift: float = 0.5
    moderate: int = 60
    barred_s: float = 3600.0

    @property
    def exposure(self) -> int:
        """Hits by strangers that a customer's run serves at most before it is demoted, if it is not popular."""
        return max((self.broad - 1) * self.repeats, self.probes)


@dataclass(slots=True)
class Watched:
    """What is known of one public run, in two kilobytes at most."""

    owner: str
    business: bool
    made: float
    began: float
    now: Hits = field(default_factory=dict)
    before: Hits = field(default_factory=dict)
    popular: bool = False
    """Whether it was widely used in its first window; a business's, in this one or the last."""
    strangers: int = 0
    """Hits by others than the owner since it became public."""
    told: bool = False
    request: int = -1
    """Who asked last: one that has to wait asks again, and is answered the same."""
    answer: Action | None = None

    def copy(self) -> Watched:
        """For the second half of a run that is cut in two."""
        return replace(self, now=dict(self.now), before=dict(self.before))


@dataclass(frozen=True, slots=True)
class Alert:
    """Whose run looks probed, who was the last to hit it, and what was done. Names of tenants, nothing of the run."""

    owner: str
    suspect: str
    action: Action


class Monitor:
    """`on_alert` hears of every demotion, and once in a window of a run that is throttled."""

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

    def watch(self, owner: str, *, business: bool = False) -> Watched:
        """The record of a run that becomes public now."""
        return Watched(owner, business, (now := self._clock()), now)

    def barred_until(self) -> float:
        """Until when a run that is demoted now stays private."""
        return self._clock() + self._settings.barred_s

    def is_barred(self, until: float) -> bool:
        return self._clock() < until

    def hit(self, watched: Watched, tenant: str, request: int) -> Action | None:
        """Somebody is about to be lent a public run: whether not."""
        self._roll(watched)
        if request != watched.request:
            watched.request, watched.answer = request, self._judge(watched, tenant)
        return watched.answer

    def _judge(self, watched: Watched, tenant: str) -> Action | None:
        name = tenant if tenant in watched.now or len(watched.now) < MOST_USERS else _OTHERS
        watched.now[name] = watched.now.get(name, 0) + 1
        if tenant == watched.owner:
            return None
        watched.strangers += 1
        if not self._suspicious(watched, name):
            return None
        action = Action.THROTTLE if watched.business else Action.DEMOTE
        if self._on_alert is not None and not watched.told:
            watched.told = True
            self._on_alert(Alert(watched.owner, tenant, action))
        moderate = watched.business and watched.now[name] <= self._settings.moderate
        return None if moderate else action

    def _roll(self, watched: Watched) -> None:
        """Begin a new window if the last is over; one that passed without a hit leaves no history."""
        elapsed = self._clock() - watched.began
        if elapsed < self._settings.window_s:
            return
        watched.before = watched.now if elapsed < 2 * self._settings.window_s else {}
        watched.now = {}
        watched.began += elapsed - elapsed % self._settings.window_s
        watched.told = False
        if watched.business:
            watched.popular = _strangers(watched, watched.before) >= self._settings.broad

    def _suspicious(self, watched: Watched, name: str) -> bool:
        settings = self._settings
        new = self._clock() - watched.made < settings.window_s
        if (new or watched.business) and _strangers(watched, watched.now) >= settings.broad:
            watched.popular = True
        if watched.popular:
            return False
        if watched.business:
            return watched.now[name] > settings.moderate or (not new and self._shifted(watched))
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
