"""The monitor: probing ends in demotion after a bounded number of hits; popularity and an owner's own use do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.prefix.monitor import Action, Alert, Monitor, MonitorSettings, drift

SETTINGS = MonitorSettings(window_s=60.0, broad=4, probes=4, repeats=8)
OWNER, BLOCK = 1, 7


class Watch:
    """A monitor whose clock is moved by hand."""

    def __init__(self, *, business: bool = False) -> None:
        self.now = 1000.0
        self.alerts: list[Alert] = []
        self.monitor = Monitor(SETTINGS, clock=lambda: self.now, on_alert=self.alerts.append)
        self.monitor.public(BLOCK, OWNER, business=business)

    def hit(self, tenant: int) -> Action | None:
        return self.monitor.hit(BLOCK, tenant)

    def served_before_demotion(self, tenants: list[int]) -> int:
        """How many of these hits are served."""
        for count, tenant in enumerate(tenants):
            if self.hit(tenant) is Action.DEMOTE:
                return count
        return len(tenants)


def test_an_owner_may_use_its_block_for_ever() -> None:
    watch = Watch()
    for _ in range(500):
        assert watch.hit(OWNER) is None
        watch.now += 7


def test_a_block_that_was_quiet_serves_strangers_few_times_whoever_they_are() -> None:
    for tenants in ([2] * 50, list(range(2, 52)), [2, 3] * 25):
        watch = Watch()
        watch.hit(OWNER)
        watch.now += 61
        assert watch.served_before_demotion(tenants) <= SETTINGS.probes


def test_probing_slowly_over_many_windows_is_counted_together() -> None:
    watch = Watch()
    watch.now += 61
    served = 0
    for tenant in range(2, 40):
        watch.now += 200
        if watch.hit(tenant) is Action.DEMOTE:
            break
        served += 1
    assert served <= SETTINGS.probes


def test_one_stranger_that_insists_on_a_new_block_is_stopped() -> None:
    assert Watch().served_before_demotion([2] * 50) == SETTINGS.repeats


def test_what_many_use_from_the_first_is_popular_and_stays() -> None:
    watch = Watch()
    assert watch.served_before_demotion([2, 3, 4, 5] * 30) == 120
    watch.now += 3600
    assert watch.served_before_demotion([9, 9, 9, 2, 3, 17] * 10) == 60
    assert not watch.alerts


def test_a_demoted_block_is_a_miss_until_it_is_public_again() -> None:
    watch = Watch()
    watch.now += 61
    watch.served_before_demotion([2] * 50)
    assert watch.hit(OWNER) is Action.DEMOTE, "nobody shares what is not public"
    watch.monitor.public(BLOCK, OWNER)
    assert watch.hit(OWNER) is None


def test_a_business_is_told_and_its_block_slowed_down_not_taken() -> None:
    watch = Watch(business=True)
    watch.now += 61
    actions = [watch.hit(tenant) for tenant in range(2, 30)]
    assert Action.DEMOTE not in actions and Action.THROTTLE in actions
    assert [alert.action for alert in watch.alerts] == [Action.THROTTLE], "once in a window"
    assert watch.alerts[0].owner == OWNER and watch.alerts[0].hits >= 1
    watch.now += 61
    watch.hit(40)
    assert len(watch.alerts) == 2


def test_a_probing_tenant_is_under_suspicion_for_some_time() -> None:
    watch = Watch()
    watch.now += 61
    watch.served_before_demotion([2] * 50)
    assert watch.monitor.suspicion(2) == 1.0 and watch.monitor.suspicion(3) == 0.0
    watch.now += 60
    assert watch.monitor.suspicion(2) == pytest.approx(0.5)


def test_only_so_many_blocks_are_watched() -> None:
    monitor = Monitor(MonitorSettings(most=3), clock=lambda: 0.0)
    for block in range(5):
        monitor.public(block, OWNER)
    assert monitor.hit(0, OWNER) is Action.DEMOTE and monitor.hit(4, OWNER) is None


Hits = st.dictionaries(st.integers(0, 5), st.integers(1, 50), max_size=5)


@given(Hits, Hits)
def test_drift_is_a_divergence(one: dict[int, int], other: dict[int, int]) -> None:
    assert 0 <= drift(one, other) <= 1
    assert drift(one, other) == pytest.approx(drift(other, one))
    assert drift(one, one) == pytest.approx(0)
    if one and other and not one.keys() & other.keys():
        assert drift(one, other) == pytest.approx(1)


@given(st.lists(st.tuples(st.integers(2, 9), st.floats(0, 90)), max_size=80))
def test_exposure_is_bounded_for_any_row_of_strangers(row: list[tuple[int, float]]) -> None:
    """Unless so many users come in the first window that nothing tells them from popularity."""
    watch = Watch()
    first: set[int] = set()
    served = 0
    for tenant, wait in row:
        watch.now += wait
        if watch.now - 1000.0 < SETTINGS.window_s:
            first.add(tenant)
        if watch.hit(tenant) is not None:
            break
        served += 1
    if len(first) < SETTINGS.broad:
        assert served <= (SETTINGS.broad - 1) * SETTINGS.repeats
