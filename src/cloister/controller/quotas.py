"""Quotas of a day (UTC): what a request may take is reserved before it starts, and what it did not take is given back.

At every moment what a tenant has used and reserved is at most its quota. A request counts on the day it began.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from time import time

from cloister.errors import QuotaExceeded
from cloister.messages.controller_frontend import KeyEntry

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Quota:
    """0: no limit."""

    tokens: int = 0
    requests: int = 0

    def __bool__(self) -> bool:
        return bool(self.tokens or self.requests)


@dataclass(slots=True)
class Account:
    """One tenant's day: what is used, and what requests under way may still take."""

    day: date
    tokens: int = 0
    requests: int = 0
    reserved: int = 0
    under_way: int = 0


@dataclass(eq=False, slots=True)
class Hold:
    """What one request has reserved."""

    account: Account
    tokens: int
    ended: bool = field(default=False)


class Quotas:
    """Accounts of two days, one for each tenant that has a key, and one for all others."""

    def __init__(self, default: Quota, clock: Callable[[], float] = time) -> None:
        self._default, self._clock = default, clock
        self._quotas: dict[str, Quota] = {}
        self._accounts: dict[tuple[str, date], Account] = {}

    def __bool__(self) -> bool:
        """Whether a tenant has a quota."""
        return any(self._quotas.values())

    def admit(self, keys: Iterable[KeyEntry]) -> None:
        """All keys of a tenant have one quota; keys.py sees that they do not differ."""
        named: dict[str, list[KeyEntry]] = {}
        for key in keys:
            named.setdefault(key.tenant, []).append(key)
        self._quotas = {
            tenant: Quota(
                next((key.tokens_a_day for key in mine if key.tokens_a_day is not None), self._default.tokens),
                next((key.requests_a_day for key in mine if key.requests_a_day is not None), self._default.requests),
            )
            for tenant, mine in named.items()
        }

    def begin(self, used: Mapping[str, tuple[int, int]]) -> None:
        """Tokens and requests of today that a file of an earlier process knows, by tenant."""
        day = self.today()
        self._accounts |= {(tenant, day): Account(day, *counts) for tenant, counts in used.items()}

    def today(self) -> date:
        return datetime.fromtimestamp(self._clock(), UTC).date()

    def reserve(self, tenant: str, tokens: int) -> Hold:
        """QuotaExceeded if the tenant's day does not cover one more request that may take these."""
        account, quota = self._account(tenant), self._quotas.get(tenant, self._default)
        if quota.requests and account.requests + account.under_way >= quota.requests:
            raise self._exceeded(account, quota, f"Your {quota.requests} requests for today are used up.")
        self._check(account, quota, tokens)
        account.reserved += tokens
        account.under_way += 1
        return Hold(account, tokens)

    def resize(self, tenant: str, hold: Hold, tokens: int) -> None:
        """Now it is known better what it may take. QuotaExceeded where that is more and the quota does not cover it."""
        if hold.ended:
            return
        self._check(hold.account, self._quotas.get(tenant, self._default), tokens - hold.tokens)
        hold.account.reserved += tokens - hold.tokens
        hold.tokens = tokens

    def settle(self, hold: Hold, tokens: int, *, counts: bool = True) -> None:
        """It ended and took these. Without `counts` it was refused, and is no request."""
        if hold.ended:
            return
        hold.ended = True
        hold.account.reserved -= hold.tokens
        hold.account.under_way -= 1
        hold.account.tokens += min(tokens, hold.tokens)
        hold.account.requests += counts

    def _account(self, tenant: str) -> Account:
        place = tenant if tenant in self._quotas else "", self.today()
        if (found := self._accounts.get(place)) is None:
            for key in [key for key in self._accounts if abs((place[1] - key[1]).days) > 1]:
                del self._accounts[key]  # requests that began then still hold it
            found = self._accounts[place] = Account(place[1])
        return found

    def _check(self, account: Account, quota: Quota, more: int) -> None:
        left = quota.tokens - account.tokens - account.reserved
        if not quota.tokens or more <= max(left, 0):
            return
        if more > quota.tokens:
            hint = "Ask for a shorter answer (max_tokens)."
            said = f"This request may take {more} tokens; your quota is {quota.tokens} a day."
            raise self._exceeded(account, quota, said, hint)
        running = " Requests under way hold some until they end." if account.reserved else ""
        said = (
            f"This request may take {more} tokens; {max(left, 0)} of your {quota.tokens} for today are left.{running}"
        )
        raise self._exceeded(account, quota, said)

    def _exceeded(self, account: Account, quota: Quota, said: str, hint: str = "") -> QuotaExceeded:
        midnight = f"The quota starts again at 00:00 UTC, in {_words(self._seconds_left())}."
        error = QuotaExceeded(said, hint=hint or midnight, retry_after=self._seconds_left())
        if quota.tokens:
            left = max(quota.tokens - account.tokens - account.reserved, 0)
            error.quota = {"tokens": (quota.tokens, left)}
        if quota.requests:
            left = max(quota.requests - account.requests - account.under_way, 0)
            error.quota = {**error.quota, "requests": (quota.requests, left)}
        return error

    def _seconds_left(self) -> int:
        return DAY_S - int(self._clock()) % DAY_S


def _words(seconds: int) -> str:
    hours, minutes = divmod(-(-seconds // 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
