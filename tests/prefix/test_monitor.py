"""The monitor: probing ends in demotion after a bounded number of hits; popularity and an owner's own use do not."""

from __future__ import annotations

import sys
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.prefix.monitor import MAX_USERS, Alert, Monitor, MonitorSettings, drift, entropy

SETTINGS = MonitorSettings(window_s=60.0, broad=4, probes=4, repeats=8)
OWNER = "owner"


class Watch:
    """A monitor whose clock is moved by hand, and one run."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.alerts: list[Alert] = []
        self.monitor = Monitor(SETTINGS, clock=lambda: self.now, on_alert=self.alerts.append)
        self.watched = self.monitor.watch(OWNER)
        self._requests = count()

    def hit(self, tenant: object) -> bool:
        return self.monitor.hit(self.watched, str(tenant), next(self._requests))

    def served_before_demotion(self, tenants: list[int]) -> int:
        """How many of these hits are served."""
        for served, tenant in enumerate(tenants):
            if self.hit(tenant):
                return served
        return len(tenants)


def test_an_owner_may_use_its_run_for_ever() -> None:
    watch = Watch()
    for _ in range(500):
        assert not watch.hit(OWNER)
        watch.now += 7


def test_a_run_that_was_quiet_serves_strangers_few_times_whoever_they_are() -> None:
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
        if watch.hit(tenant):
            break
        served += 1
    assert served <= SETTINGS.probes


def test_one_stranger_that_insists_on_a_new_run_is_stopped() -> None:
    assert Watch().served_before_demotion([2] * 50) == SETTINGS.repeats


def test_what_many_use_from_the_first_is_popular_and_stays() -> None:
    watch = Watch()
    assert watch.served_before_demotion([2, 3, 4, 5] * 30) == 120
    watch.now += 3600
    assert watch.served_before_demotion([9, 9, 9, 2, 3, 17] * 10) == 60
    assert not watch.alerts


def test_its_owner_and_three_others_are_not_many() -> None:
    watch = Watch()
    for tenant in (OWNER, 2, 3, 4):
        watch.hit(tenant)
    assert not watch.watched.popular


def test_a_request_that_has_to_wait_and_asks_again_counts_once() -> None:
    watch = Watch()
    assert {watch.monitor.hit(watch.watched, "2", 77) for _ in range(50)} == {False}
    assert watch.watched.foreign_hits == 1


def test_what_is_known_of_a_run_is_bounded_whoever_comes() -> None:
    watch = Watch()
    for tenant in range(1000):
        watch.hit(tenant)
    assert len(watch.watched.now) <= MAX_USERS + 1
    assert sum(watch.watched.now.values()) == watch.watched.foreign_hits == 1000
    assert sum(map(sys.getsizeof, (watch.watched, watch.watched.now, watch.watched.before))) < 2000


def test_a_run_whose_owner_is_forgotten_is_anothers_who_has_a_right_to_it() -> None:
    watch = Watch()
    for tenant in (OWNER, "heir", "heir"):
        watch.hit(tenant)
    watch.watched.forget(OWNER, "heir")
    assert watch.watched.owner == "heir" and watch.watched.now == {"heir": 2}
    assert not any(watch.hit("heir") for _ in range(500))


Hits = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), max_size=5)


@given(Hits, Hits)
def test_drift_is_a_divergence(one: dict[str, int], other: dict[str, int]) -> None:
    assert 0 <= drift(one, other) <= 1
    assert drift(one, other) == pytest.approx(drift(other, one))
    assert drift(one, one) == pytest.approx(0)
    if one and other and not one.keys() & other.keys():
        assert drift(one, other) == pytest.approx(1)


def test_entropy_is_users_per_hit() -> None:
    assert entropy({"a": 8}) == 0.125 and entropy({"a": 1, "b": 1}) == 1.0 and entropy({}) == 0.0


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
        if watch.hit(tenant):
            break
        served += 1
    if len(first) < SETTINGS.broad:
        assert served <= SETTINGS.exposure == (SETTINGS.broad - 1) * SETTINGS.repeats
