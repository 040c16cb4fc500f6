"""Both servers get the same requests, in turns, and only one of them runs at a time."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from cloister.addresses import HttpAddress
from cloister_bench.sharing.overhead import OFF, ON, Cost, Round, compared, processor_seconds, take_turns
from cloister_bench.sharing.results import Plan, Results, tables
from cloister_bench.sharing.workloads import QUICK
from tests.cloister_bench.stub_server import MODEL, openai_server, stub_server


@dataclass
class Side:
    """A server that notes when it is stopped."""

    policy: str
    address: HttpAddress
    log: list[tuple[str, str]]
    model: str = MODEL
    level: str = "open"
    session: int = field(default_factory=lambda: os.getsid(0))

    def pause(self) -> None:
        self.log.append((self.policy, "stops"))

    def resume(self) -> None:
        self.log.append((self.policy, "runs"))


def test_servers_take_turns_at_the_same_requests() -> None:
    log: list[tuple[str, str]] = []
    rounds: list[Round] = []
    with stub_server(openai_server()) as one, stub_server(openai_server()) as other:
        off, on = (Side(policy, HttpAddress.parse(stub.url), log) for policy, stub in ((OFF, one), (ON, other)))
        take_turns(off, on, ["k"], QUICK, 1, 2, rounds.append)  # type: ignore[arg-type]
        asked = [[request.body["messages"] for request in stub.requests] for stub in (one, other)]
    assert len(rounds) == 2, "the first does not count"
    assert len(asked[0]) == 3 * QUICK.pii_requests
    assert sorted(map(str, asked[0])) == sorted(map(str, asked[1])) and len(set(map(str, asked[0]))) == len(asked[0])
    running, worst = {OFF, ON}, []
    for policy, what in log[:-3]:
        (running.discard if what == "stops" else running.add)(policy)
        worst.append(len(running))
    assert max(worst) == 1, "never both"
    assert {policy for policy, what in log[-2:] if what == "runs"} == {OFF, ON}, "at the end both can be ended"


def test_ratios_are_by_round_and_have_a_spread() -> None:
    slow, fast = Cost(50.0, 20.0, 0), Cost(100.0, 10.0, 0)
    told = compared([Round(slow, slow), Round(fast, fast), Round(fast, Cost(98.0, 10.3, 0))])
    assert told["throughput"] == {"median": 1.0, "low": 0.98, "high": 1.0}
    assert told["processor"] == {"median": 1.0, "low": 1.0, "high": 1.03}
    results = Results(Plan(overhead=True), "m", overhead=[Round(fast, Cost(98.0, 10.3, 0))])
    document = results.document()
    assert [(row["measured"], row["met"]) for row in document["targets"]] == [(0.98, False), (1.03, False)]
    assert [row[0] for row in tables(document)[0].rows] == ["processor", "throughput"]


def test_processor_time_is_that_of_a_session() -> None:
    before = processor_seconds(os.getsid(0))
    while processor_seconds(os.getsid(0)) == before:
        sum(range(10_000))
    assert processor_seconds(1 << 30) == pytest.approx(0.0)
