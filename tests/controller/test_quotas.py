"""In any order of events: what a tenant used and reserved is at most its quota, and all of it is accounted for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cloister.controller.quotas import DAY_S, Account, Hold, Quota, Quotas
from cloister.errors import QuotaExceeded
from cloister.messages.controller_frontend import KeyEntry

NOON = datetime(2026, 11, 19, 12, tzinfo=UTC).timestamp()
ANN, BOB = KeyEntry(bytes(32), "ann", tokens_a_day=100, requests_a_day=5), KeyEntry(bytes(32), "bob")


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.quotas = Quotas(Quota(40, 3), self.clock)
        self.quotas.admit([ANN, BOB])
        self.limits = {"ann": (100, 5), "bob": (40, 3), "unknown": (40, 3)}
        self.holds: list[tuple[str, Hold]] = []
        self.days: dict[int, tuple[str, Account]] = {}
        self.taken: dict[int, int] = {}
        self.requests: dict[int, int] = {}

    @rule(tenant=st.sampled_from(["ann", "bob", "unknown"]), tokens=st.integers(0, 60))
    def begins(self, tenant: str, tokens: int) -> None:
        try:
            hold = self.quotas.reserve(tenant, tokens)
        except QuotaExceeded as refused:
            assert 0 < refused.retry_after <= DAY_S
            for limit, left in refused.quota.values():
                assert 0 <= left <= limit
            return
        self.holds.append((tenant, hold))
        self.days[id(hold.account)] = tenant, hold.account

    @rule(which=st.integers(0), tokens=st.integers(0, 60))
    def is_read(self, which: int, tokens: int) -> None:
        if self.holds:
            tenant, hold = self.holds[which % len(self.holds)]
            before = hold.tokens
            try:
                self.quotas.resize(tenant, hold, tokens)
            except QuotaExceeded:
                assert tokens > before == hold.tokens

    @rule(which=st.integers(0), tokens=st.integers(0, 60), counts=st.booleans())
    def ends(self, which: int, tokens: int, counts: bool) -> None:
        if self.holds:
            _, hold = self.holds.pop(which % len(self.holds))
            place, taken = id(hold.account), min(tokens, hold.tokens)
            for _ in range(2):  # a second end changes nothing
                self.quotas.settle(hold, taken, counts=counts)
            self.taken[place] = self.taken.get(place, 0) + taken
            self.requests[place] = self.requests.get(place, 0) + counts

    @rule(hours=st.integers(0, 30))
    def time_passes(self, hours: int) -> None:
        self.clock.now += 3600 * hours

    @invariant()
    def holds_to_the_quotas(self) -> None:
        for place, (tenant, account) in self.days.items():
            tokens, requests = self.limits[tenant]
            mine = [hold for _, hold in self.holds if hold.account is account]
            assert account.reserved == sum(hold.tokens for hold in mine) and account.under_way == len(mine)
            assert account.tokens == self.taken.get(place, 0) and account.requests == self.requests.get(place, 0)
            assert 0 <= account.tokens + account.reserved <= tokens
            assert 0 <= account.requests + account.under_way <= requests
        assert len(self.quotas._accounts) <= 9


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40)


def test_what_was_not_taken_is_given_back_and_the_error_says_when_to_come_again() -> None:
    quotas = Quotas(Quota(), Clock())
    quotas.admit([ANN])
    hold = quotas.reserve("ann", 90)
    with pytest.raises(QuotaExceeded, match="Requests under way hold some"):
        quotas.reserve("ann", 20)
    quotas.settle(hold, 30)
    quotas.settle(quotas.reserve("ann", 70), 70)
    with pytest.raises(QuotaExceeded, match=r"0 of your 100 for today are left.*00:00 UTC, in 12 h 0 min") as refused:
        quotas.reserve("ann", 1)
    assert refused.value.retry_after == 12 * 3600 and refused.value.code == "insufficient_quota"
    assert refused.value.quota == {"tokens": (100, 0), "requests": (5, 3)}


def test_a_request_that_no_day_covers_gets_other_advice() -> None:
    quotas = Quotas(Quota(10))
    with pytest.raises(QuotaExceeded, match="max_tokens"):
        quotas.reserve("ann", 11)


def test_keys_without_a_quota_have_their_tenants_or_the_servers() -> None:
    quotas = Quotas(Quota(10, 1), Clock())
    quotas.admit([ANN, KeyEntry(bytes(32), "ann"), BOB, KeyEntry(bytes(32), "free", tokens_a_day=0, requests_a_day=0)])
    quotas.settle(quotas.reserve("ann", 90), 90)
    quotas.settle(quotas.reserve("bob", 10), 10)
    for _ in range(9):
        quotas.reserve("free", 10**9)
    for tenant, tokens in (("ann", 11), ("bob", 0), ("bob", 1)):
        with pytest.raises(QuotaExceeded):
            quotas.reserve(tenant, tokens)
    assert quotas and not Quotas(Quota(10)), "whether a tenant has one"


def test_tenants_without_a_key_share_one_quota() -> None:
    """One may have lost its key a moment ago; a frontend that makes names up gains nothing."""
    quotas = Quotas(Quota(10), Clock())
    quotas.admit([ANN])
    quotas.reserve("one", 10)
    with pytest.raises(QuotaExceeded):
        quotas.reserve("another", 1)
    assert len(quotas._accounts) == 1


def test_what_an_earlier_process_counted_counts() -> None:
    quotas = Quotas(Quota(), Clock())
    quotas.admit([ANN])
    quotas.begin({"ann": (99, 4), "gone": (5, 5)})
    with pytest.raises(QuotaExceeded):
        quotas.reserve("ann", 2)
    quotas.reserve("ann", 1)
    with pytest.raises(QuotaExceeded, match="5 requests for today"):
        quotas.reserve("ann", 0)
