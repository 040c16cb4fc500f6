"""Many nodes: each request ends once, more nodes do not make it worse, one node agrees with queueing theory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import mean, quantiles
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.access.node_choice import chosen_node
from cloister.levels import LevelName
from cloister_bench.capacity.machine import Limits, Step
from cloister_bench.capacity.simulation import Outage, Results, Scenario, Simulation
from cloister_bench.capacity.traces import Request, Trace, scaled, synthetic
from tests.cloister_bench.capacity.profiles import OPEN, PARTITIONED, machine, profile
from tests.examples import examples

BOTH: dict[LevelName, float] = {OPEN: 0.5, PARTITIONED: 0.5}
outages = st.builds(
    lambda node, at, lasts, kind: Outage(node, at, at + lasts, kind),
    st.integers(0, 3),
    st.floats(0, 60),
    st.floats(0.1, 60),
    st.sampled_from(["kill", "drain"]),
)


def simulated(requests: list[Request], *, coarse: int = 64, limits: Limits | None = None, **more: Any) -> Results:
    scenario = Scenario(**{"nodes": 3, "levels": BOTH, **more})
    simulation = Simulation(machine(limits=limits or Limits(drain_s=5.0)), scenario)
    for node in simulation.results.nodes:
        node.coarse = coarse
    return simulation.run(requests)


def p99(results: Results) -> float:
    return quantiles(results.first_s, n=100)[98]


@given(
    st.lists(st.tuples(st.floats(0, 90), st.integers(1, 900), st.integers(1, 200)), min_size=1, max_size=60),
    st.lists(outages, max_size=3, unique_by=lambda one: one.node),
    st.booleans(),
    st.booleans(),
)
@examples(60)
def test_each_request_ends_once(
    rows: list[tuple[float, int, int]], away: list[Outage], tokens: bool, ask_again: bool
) -> None:
    requests = [Request(*row) for row in sorted(rows)]
    limits = Limits(max_vaults=4, max_running=3, max_waiting=10, max_context=900, kv_tokens=1500, drain_s=5.0)
    results = simulated(requests, outages=away, tokens=tokens, ask_again=ask_again, limits=limits)
    assert sum(results.outcomes.values()) == len(requests)
    assert results.outcomes["answered"] == len(results.first_s) == len(results.whole_s)
    assert all(0 < first <= whole + 1e-6 for first, whole in zip(results.first_s, results.whole_s, strict=True))
    assert all(node.present == 0 and node.counts.most_vaults <= 4 for node in results.nodes)
    assert results.outcomes["refused"] + results.outcomes["too_long"] == sum(results.of_nodes("refused"))
    if not away:
        assert results.retried == results.outcomes["lost"] == results.outcomes["unreachable"] == 0


def waited(trace: Trace, served_s: float) -> Iterator[float]:
    """Lindley's recursion on the same arrivals."""
    free = 0.0
    for request in trace.requests:
        free = max(free, request.at) + served_s
        yield free - request.at


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_node_is_the_queue_of_theory(load: float) -> None:
    """Poisson arrivals, one length, one after the other: M/D/1 (Pollaczek and Khinchine)."""
    one = machine({OPEN: profile(first_s=0.0, piece_s=0.0, token_s=0.01, steps=(Step(1, 0.01),))})
    served_s = 50 * 0.01
    trace = synthetic(load / served_s, 8000, 1, 1, seed=3)
    requests = [Request(each.at, 50, 1) for each in trace.requests]
    results = Simulation(one, Scenario(1, {OPEN: 1.0}, verified=0.0)).run(requests)
    expected = served_s + load * served_s / (2 * (1 - load))
    assert mean(results.first_s) == pytest.approx(expected, rel=0.15)
    assert mean(results.first_s) == pytest.approx(mean(waited(trace, served_s)), abs=2 / one.redeemed_per_s)
    assert results.utilisation == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize("level", [OPEN, PARTITIONED])
def test_equal_turns_at_once_are_the_turns_one_by_one(level: LevelName, tokens: bool) -> None:
    requests = list(scaled(synthetic(0.5, 300, 400, 60), 0.35))
    fast, slow = (simulated(requests, coarse=each, levels={level: 1.0}, tokens=tokens) for each in (64, 1))
    assert len(requests) > 60 and fast.outcomes == slow.outcomes == {"answered": len(requests)}
    assert mean(fast.first_s) == pytest.approx(mean(slow.first_s), rel=0.05)
    assert p99(fast) == pytest.approx(p99(slow), rel=0.08)


def test_more_nodes_make_nothing_worse() -> None:
    requests = list(scaled(synthetic(1.0, 900, 300, 80), 1.0))
    found = [simulated(requests, nodes=nodes) for nodes in (4, 8, 16, 32)]
    for fewer, more in pairwise(found):
        assert p99(more) <= 1.05 * p99(fewer) and more.utilisation < fewer.utilisation


def test_a_node_that_is_away_is_met_again_with_its_share() -> None:
    """One of four all the time: a quarter is tried twice, and a quarter of that fails cleanly."""
    requests = [Request(float(at), 5, 1) for at in range(4000)]
    results = simulated(requests, nodes=4, outages=[Outage(0, 0.0, 1e9)])
    assert results.retried == pytest.approx(1000, abs=100)
    assert results.outcomes["unreachable"] == pytest.approx(250, abs=60)
    assert results.outcomes["answered"] == 4000 - results.outcomes["unreachable"]
    assert sum(results.of_nodes("redeemed")) == results.outcomes["answered"]


def test_answers_of_a_killed_node_are_lost_and_those_of_a_draining_one_end() -> None:
    requests = [Request(0.0, 40, 40)] * 6 + [Request(30.0, 5, 1)]
    found = {
        kind: simulated(requests, nodes=1, outages=[Outage(0, 2.0, 20.0, cast(Any, kind))], limits=Limits(drain_s=15.0))
        for kind in ("kill", "drain")
    }
    assert found["kill"].outcomes == Counter(lost=6, answered=1) and found["drain"].outcomes == Counter(answered=7)
    again = simulated(requests, nodes=1, outages=[Outage(0, 2.0, 2.5)], ask_again=True)
    assert again.outcomes == Counter(answered=7) and again.retried == 6 and min(again.first_s[:6]) > 2.0


def test_a_seed_gives_the_same_numbers() -> None:
    requests = list(scaled(synthetic(1.0, 200, 200, 50), 0.7, seed=3))
    one, other, third = (simulated(requests, seed=seed, outages=[Outage(1, 50, 90)]) for seed in (1, 1, 2))
    assert one.first_s == other.first_s and one.outcomes == other.outcomes and one.first_s != third.first_s


def test_a_part_of_the_nodes_sees_what_it_sees_among_all() -> None:
    requests = list(scaled(synthetic(2.0, 600, 150, 40), 2.0))
    whole, part = simulated(requests, nodes=12), simulated(requests, nodes=12, simulated=4)
    assert part.outcomes["answered"] == pytest.approx(whole.outcomes["answered"] / 3, rel=0.15)
    assert mean(part.first_s) == pytest.approx(mean(whole.first_s), rel=0.3)


def test_nonces_choose_nodes_as_the_simulation_does() -> None:
    """The real choice gives each node the same chance, which is what the simulation draws."""
    nodes = [f"node-{number}" for number in range(5)]
    tokens = (cast(Any, SimpleNamespace(nonce=number.to_bytes(32))) for number in range(5000))
    counted = Counter(chosen_node(token, nodes) for token in tokens)
    assert all(abs(counted[node] - 1000) < 130 for node in nodes)
