"""What detection missed shows in who hits a block: rolling windows, entropy of users per hit, drift against history
(SafeKV §V-C, Equation 3).

    hit(block, tenant) → None | DEMOTE | THROTTLE

A shared block that one user made and used, and that others suddenly try, looks probed. A customer's block is demoted at
once; a business's own (a system prompt, say) is slowed down and its owner told. A block that was widely used before may
go on so. Knows numbers: blocks, tenants and a clock; neither text nor tokens nor the tree.

The exposure of a block is bounded. In its first window at most `repeats` hits by each stranger are served, of whom
there are fewer than `broad`: that many users at once cannot be told from popularity, and are taken for it. If it was
not popular by then, no more than `probes` hits by strangers are ever served, whoever they pretend to be.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from math import log2
from time import monotonic


class Action(Enum):
    """DEMOTE: private from now on. THROTTLE: serve it slowly, alert its owner."""

    DEMOTE = "demote"
    THROTTLE = "throttle"


@dataclass(frozen=True, slots=True)
class MonitorSettings:
    """`window_s`: how long a window is. `broad`: users in a window that make a block widely used (the paper's u_pre).
    `probes`: strangers' hits on a block after a quiet window before it is demoted. `repeats`: hits of one stranger on a
    new block. `entropy` (users per hit) and `drift` (Jensen–Shannon, in bits): from which a window looks probed.
    `most`: blocks watched at once; those hit longest ago are forgotten."""

    window_s: float = 60.0
    broad: int = 4
    probes: int = 4
    repeats: int = 8
    entropy: float = 0.5
    drift: float = 0.5
    most: int = 1 << 16


@dataclass(slots=True)
class _Window:
    """Hits by user, of one window."""

    hits: dict[int, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.hits.values())

    @property
    def users(self) -> int:
        return len(self.hits)

    @property
    def entropy(self) -> float:
        """u_cnt / hit_cnt (Equation 3): near 0 where one user hits often, 1 where every hit is another's."""
        return self.users / self.total if self.hits else 0.0


@dataclass(slots=True)
class _Watched:
    owner: int
    business: bool
    made: float
    began: float
    now: _Window = field(default_factory=_Window)
    before: _Window = field(default_factory=_Window)
    popular: bool = False
    """Whether it was widely used in its first window."""
    strangers: int = 0
    """Hits by others than the owner since it became public."""
    told: bool = False


@dataclass(frozen=True, slots=True)
class Alert:
    """For a block's owner: numbers only."""

    block: int
    owner: int
    action: Action
    users: int
    hits: int
    entropy: float
    drift: float


class Monitor:
    """`on_alert` is called with every action."""

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
        self._watched: OrderedDict[int, _Watched] = OrderedDict()
        self._suspects: OrderedDict[int, float] = OrderedDict()

    def public(self, block: int, owner: int, *, business: bool = False) -> None:
        """A block was made public: from now on its hits count."""
        self._watched[block] = _Watched(owner, business, (now := self._clock()), now)
        self._watched.move_to_end(block)
        while len(self._watched) > self._settings.most:
            self._watched.popitem(last=False)

    def forget(self, blocks: Iterable[int]) -> None:
        """These are private again, or gone."""
        for block in blocks:
            self._watched.pop(block, None)

    def hit(self, block: int, tenant: int) -> Action | None:
        """Somebody wants a block that is shared: what to do before it is served. DEMOTE must be obeyed: a miss.

        A block that is not watched is nobody's to share: DEMOTE.
        """
        if (watched := self._watched.get(block)) is None:
            return Action.DEMOTE
        self._watched.move_to_end(block)
        self._roll(watched)
        watched.now.hits[tenant] = watched.now.hits.get(tenant, 0) + 1
        if tenant != watched.owner:
            watched.strangers += 1
        if not self._suspicious(watched, tenant):
            return None
        return self._act(block, watched, tenant)

    def suspicion(self, tenant: int) -> float:
        """How suspicious a tenant's recent hits are, from 0 to 1; it halves with every window (SafeKV §V-D)."""
        if (score := self._suspects.get(tenant)) is None:
            return 0.0
        windows = (self._clock() - score) / self._settings.window_s
        return float(max(0.0, min(1.0, 2.0**-windows)))

    def exposure(self, block: int) -> int:
        """How many hits by strangers were asked of it so far."""
        return self._watched[block].strangers if block in self._watched else 0

    def _roll(self, watched: _Watched) -> None:
        """Begin a new window if the last is over; one that passed without a hit leaves no history."""
        elapsed = self._clock() - watched.began
        if elapsed < self._settings.window_s:
            return
        watched.before = watched.now if elapsed < 2 * self._settings.window_s else _Window()
        watched.now = _Window()
        watched.began += elapsed - elapsed % self._settings.window_s
        watched.told = False

    def _suspicious(self, watched: _Watched, tenant: int) -> bool:
        settings = self._settings
        if tenant == watched.owner:
            return False
        if self._clock() - watched.made < settings.window_s:  # new: many users are popularity, few must not insist
            watched.popular = watched.popular or watched.now.users >= settings.broad
            return not watched.popular and watched.now.hits[tenant] > settings.repeats
        if watched.popular:
            return False
        if watched.strangers > settings.probes:
            return True
        shifted = drift(watched.before.hits, watched.now.hits) >= settings.drift
        return shifted and watched.now.users > 2 and watched.now.entropy >= settings.entropy

    def _act(self, block: int, watched: _Watched, tenant: int) -> Action:
        action = Action.THROTTLE if watched.business else Action.DEMOTE
        self._suspects[tenant] = self._clock()
        self._suspects.move_to_end(tenant)
        while len(self._suspects) > self._settings.most:
            self._suspects.popitem(last=False)
        if self._on_alert is not None and not watched.told:
            watched.told = True
            now, moved = watched.now, drift(watched.before.hits, watched.now.hits)
            self._on_alert(Alert(block, watched.owner, action, now.users, now.total, now.entropy, moved))
        if action is Action.DEMOTE:
            del self._watched[block]
        return action


def drift(before: dict[int, int], now: dict[int, int]) -> float:
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
