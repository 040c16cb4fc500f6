"""How much service each tenant has received: it decides whose turn it is in the engine and at the core lease."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2
ANONYMOUS = "token-"
"""So begins the name of a tenant that is one call, paid for with an anonymous token; no API key's tenant has such one.
All of them together have one tenant's share: else a user with many tokens would have many."""
CREDIT = 64  # about one short prompt: a tenant that arrives may have received at most this much less than the others
_MOST = 2**31 - 1
_MOST_UNDRAINED = 1024
_IDLE_REMEMBERED = 64


def payer_of(tenant: str) -> str:
    """Whose share of cores, places and queues a tenant uses."""
    return ANONYMOUS if tenant.startswith(ANONYMOUS) else tenant


class ServiceMeter:
    """The virtual token counter of Sheng et al., OSDI 2024, §4, by payer. `drain`, `merge`: one share for service and
    vaults."""

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._uncut: dict[str, int] = {}
        self._calls: Counter[str] = Counter()  # under way, by tenant
        self._undrained: Counter[str] = Counter()

    @property
    def active(self) -> int:
        return len(self._live)

    def served(self, tenant: str) -> int:
        return self._served.get(payer_of(tenant), 0)

    def arrive(self, tenant: str) -> None:
        """Idle time saves up no more than CREDIT, however often the tenant comes and goes."""
        if (payer := payer_of(tenant)) not in self._live:
            floor = min((self._served[other] - CREDIT for other in self._live), default=0)
            self._served[payer] = max(self._served.get(payer, floor), floor)
        self._live[payer] = self._live.get(payer, 0) + 1
        self._uncut.setdefault(tenant, CREDIT)
        self._calls[tenant] += 1

    def uncut(self, tenant: str) -> int:
        """Longest prompt that is computed in one piece while others are active; falls with the service received."""
        return self._uncut.get(tenant, 0)

    def leave(self, tenant: str) -> None:
        self._calls[tenant] -= 1
        if not self._calls[tenant]:
            del self._calls[tenant], self._uncut[tenant]
        self._live[payer := payer_of(tenant)] -= 1
        if not self._live[payer]:
            del self._live[payer]
            self._forget()

    def charge(self, tenant: str, *, inputs: int = 0, outputs: int = 0) -> None:
        service = INPUT_WEIGHT * inputs + OUTPUT_WEIGHT * outputs
        self._served[payer := payer_of(tenant)] += service
        if payer in self._undrained or len(self._undrained) < _MOST_UNDRAINED:
            self._undrained[payer] += service
        self._uncut[tenant] = max(self._uncut[tenant] - inputs, 0)

    def drain(self, most: int) -> dict[str, int]:
        """Service per tenant since the last call; of more than `most` tenants, those with the most."""
        charges = {tenant: min(service, _MOST) for tenant, service in self._undrained.most_common(most) if tenant}
        self._undrained.clear()
        return charges

    def merge(self, elsewhere: Mapping[str, int]) -> None:
        """Add the charges of another meter. A tenant unknown here starts at the others' level when it arrives."""
        for tenant, service in elsewhere.items():
            if tenant in self._served:
                self._served[tenant] += service

    def most_served(self, payers: Iterable[str]) -> str:
        """The one with the most service; among equals the last by name, so that the choice is repeatable."""
        return max(payers, key=lambda payer: (self._served[payer], payer))

    def _forget(self) -> None:
        """Drop counters that a re-arrival would lift anyway: tenants that never return cost no memory."""
        if not self._live:
            self._served.clear()
        elif len(self._served) > 2 * len(self._live) + _IDLE_REMEMBERED:
            floor = min(self._served[tenant] for tenant in self._live) - CREDIT
            self._served = {t: n for t, n in self._served.items() if t in self._live or n > floor}


LONG_S = 0.5  # duration of a step while one tenant is alone: the first request of another tenant waits that long
SHORT_STEPS = 2.6  # a decoding request should not wait three times as long as it would alone
LEAST_SHORT_S = 0.02
LEAST_TOKENS = 1  # on a slow machine each prompt token can cost a step
FIRST_TOKENS = 64  # before anything is learned
LINGER_S = 10.0  # a tenant counts as active for this long after its last request
_LEARN = 0.25


class Pace:
    """`note` records how long a step took, and `note_between` a step of another process in between."""

    def __init__(self, most: int, short_steps: float = SHORT_STEPS) -> None:
        self._most = most
        self._short_steps = short_steps
        self._one: float | None = None  # seconds of a step of one token
        self._each: float | None = None  # seconds that each further token adds
        self._between: float | None = None

    @property
    def short(self) -> int:
        step = self._one if self._between is None else self._between
        return self._within(max(LEAST_SHORT_S, self._short_steps * (step or 0.0)))

    @property
    def long(self) -> int:
        return max(self.short, self._within(LONG_S))

    def note(self, tokens: int, seconds: float) -> None:
        if tokens == 1:
            self._one = _learned(self._one, seconds)
        else:
            self._each = _learned(self._each, max(seconds - (self._one or 0.0), 0.0) / (tokens - 1))

    def note_between(self, seconds: float) -> None:
        self._between = _learned(self._between, seconds)

    def _within(self, seconds: float) -> int:
        if self._each is None:
            return min(FIRST_TOKENS, self._most)
        tokens = 1 + (seconds - (self._one or 0.0)) / max(self._each, 1e-9)
        return int(min(max(tokens, LEAST_TOKENS), self._most))


def _learned(known: float | None, seen: float) -> float:
    return seen if known is None else known + _LEARN * (seen - known)


class ActiveTenants:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._present: Counter[str] = Counter()
        self._left: dict[str, float] = {}

    def arrive(self, tenant: str) -> None:
        self._present[tenant] += 1
        self._left.pop(tenant, None)

    def leave(self, tenant: str) -> None:
        self._present[tenant] -= 1
        if self._present[tenant] <= 0:
            del self._present[tenant]
            self._forget()
            self._left[tenant] = self._clock()

    @property
    def several(self) -> bool:
        if len(self._present) + len(self._left) < 2:
            return False
        self._forget()
        return len(self._present) + len(self._left) > 1

    @property
    def several_payers(self) -> bool:
        return self.several and len({payer_of(one) for one in (*self._present, *self._left)}) > 1

    def _forget(self) -> None:
        """The dictionary is in the order of leaving."""
        past = self._clock() - LINGER_S
        while self._left and self._left[first := next(iter(self._left))] < past:
            del self._left[first]
