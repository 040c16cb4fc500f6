"""Measuring a server, replaying on it, and comparing: with a stub that answers at once, and in a release with nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister.addresses import HttpAddress
from cloister.errors import ServiceUnavailable
from cloister_bench.capacity.check import Check, Share, replay, simulate
from cloister_bench.capacity.machine import decode_machine
from cloister_bench.capacity.measure import Measuring, Series, server_at
from cloister_bench.capacity.traces import synthetic
from cloister_bench.servers import Server
from tests.cli.conftest import Run
from tests.cloister_bench.capacity.profiles import OPEN, machine
from tests.cloister_bench.stub_server import MODEL, openai_server, stub_server

SMALL = Series(rows=(1, 3), repeats=2, tokens=5, crowd=2, turns=1)


def test_a_level_is_measured_by_a_short_series_of_requests() -> None:
    with stub_server(openai_server()) as stub:
        found = Measuring(server_at(stub.url, ["key"]), SMALL).level(OPEN)
    bodies = [request.body for request in stub.requests if request.method == "POST"]
    assert [step.rows for step in found.steps] == [1, 3] and found.token_s > 0 and found.vault_s == 0
    assert {body["protection"] for body in bodies} == {OPEN} and all(body["ignore_eos"] for body in bodies)
    assert len(bodies) == 2 * 2 + 1 + 2 * 2 + (1 + 3) + 2, "prompts, alone and beside, rows, a crowd"
    assert decode_machine(machine({OPEN: found}).encode()).profile(OPEN) == found


def test_a_node_that_hides_its_vaults_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_bench.capacity.measure.METRICS_TRIES", 1)
    monkeypatch.setattr("cloister_bench.capacity.measure.COARSE_S", 0.0)
    with stub_server(openai_server()) as stub, pytest.raises(ServiceUnavailable, match="vault's start"):
        Measuring(server_at(stub.url, ["key"]), SMALL).vault_start_s()


def test_a_share_is_replayed_at_its_times_and_compared() -> None:
    trace = synthetic(20.0, 1.0, 5, 3)
    with stub_server(openai_server()) as stub:
        server = Server("stub", HttpAddress.parse(stub.url))
        server.model, server.user_keys = MODEL, ("one", "two")
        answers, broken = replay(server, OPEN, trace.requests)
        keys = {request.headers["authorization"] for request in stub.requests}
    assert not broken and [one.output_tokens for one in answers] == [each.output for each in trace.requests]
    sent = [one.sent - answers[0].sent for one in answers]
    assert sent == pytest.approx([each.at - trace.requests[0].at for each in trace.requests], abs=0.5)
    assert keys == {"Bearer one", "Bearer two"}
    shares = [Share(machine(), answers, broken, simulate(machine(), OPEN, trace.requests), trace.requests[0].at)]
    document = Check(OPEN, trace, shares).document()
    assert document["requests"] == len(trace.requests) and not document["within_target"]
    assert all(row["ratio"] == pytest.approx(row["simulated"] / row["real"], rel=0.1) for row in document["rows"][:4])


@pytest.mark.release
@pytest.mark.timeout(1800)
def test_three_nodes_are_as_simulated(run: Run, tmp_path: Path) -> None:
    """The ratios are reported (docs/bench/capacity.md), not asserted: other load on the machine moves them."""
    result = run("plan", "check", "--requests", "24", "--per-second", "0.2", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["nodes"] == 3 and document["requests"] == 24 and not document["broken"]
    assert all(row["real"] > 0 and row["simulated"] > 0 for row in document["rows"])
