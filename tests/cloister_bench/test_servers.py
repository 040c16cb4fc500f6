import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from cloister.addresses import HttpAddress
from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.messages import Workload
from cloister_bench.report import Percentiles, RunReport
from cloister_bench.servers import Comparison, ServerProcess, Side, compare

NONE = Percentiles(None, None, None)


def runs(*throughputs: float) -> list[RunReport]:
    return [RunReport(users, rate, NONE, NONE, 0) for users, rate in zip((1, 8), throughputs, strict=True)]


def test_ratios_are_of_the_medians_of_the_rounds() -> None:
    ours = [runs(10, 100), runs(30, 300), runs(20, 500)]
    comparison = Comparison({"ours": ours, "peer": [runs(10, 100), runs(10, 0), runs(40, 0)]})
    assert comparison.throughput("ours") == {1: 20, 8: 300}
    assert comparison.ratios() == {"ours": {"peer": {1: 2.0}}}, "no ratio over a peer that answered nothing"
    assert [run.output_tokens_per_s for run in comparison.median_runs("ours")] == [20, 300]
    document = json.loads(json.dumps(comparison.as_json()))
    assert document["ratios"] == {"ours": {"peer": {"1": 2.0}}}
    assert len(document["servers"]["ours"]["rounds"]) == 3


STUB = """
import sys, time
from tests.cloister_bench.stub_server import openai_server, stub_server
with stub_server(openai_server()) as stub:
    open(sys.argv[1] + ".part", "w").write(stub.url)
    import os; os.rename(sys.argv[1] + ".part", sys.argv[1])
    time.sleep(600)
"""


def start(name: str, folder: Path) -> ServerProcess:
    """A stub in a process of its own; it says by a file where it listens."""
    said = folder / name
    command = [sys.executable, "-c", STUB, str(said)]
    server = ServerProcess(
        name, command, HttpAddress("http", "127.0.0.1", 9), folder / f"{name}.log", environment={"PYTHONPATH": "."}
    )
    server.__enter__()
    while not said.exists():
        assert psutil.pid_exists(server.pid), (folder / f"{name}.log").read_text()
        time.sleep(0.02)
    server.address = HttpAddress.parse(said.read_text())
    return server


async def test_servers_are_measured_in_turn_while_the_others_are_paused(tmp_path: Path) -> None:
    servers = [start("ours", tmp_path), start("peer", tmp_path)]
    pids = {server.name: server.pid for server in servers}
    ours, peer = servers
    sides = [Side("open", ours, "open"), Side("partitioned", ours, "partitioned"), Side("peer", peer)]
    order: list[tuple[str, int]] = []

    def on_run_end(name: str, round: int, run: RunReport) -> None:
        order.append((name, round))
        expected = ["peer" if name == "peer" else "ours"]
        for _ in range(200):  # a process stops at its next chance, not at once
            states = {each: psutil.Process(pid).status() for each, pid in pids.items()}
            awake = [each for each, state in states.items() if state != psutil.STATUS_STOPPED]
            if awake == expected:
                return
            time.sleep(0.01)
        raise AssertionError(f"{awake} run while {expected} is measured")

    try:
        load = Workload(input_tokens=2, output_tokens=3, requests_per_user=2, warmup=0)
        comparison = await compare(sides, [1, 2], load, rounds=2, own=2, on_run_end=on_run_end)
    finally:
        for server in servers:
            server.__exit__(None, None, None)
    names = ["open", "partitioned", "peer"]
    assert order == [(name, round) for round in (0, 1) for name in names for _ in (1, 2)]
    assert list(comparison.rounds) == names and list(comparison.ratios()) == ["open", "partitioned"]
    assert all(run.errors == 0 for name in names for rounds in comparison.rounds[name] for run in rounds)
    assert not any(psutil.pid_exists(pid) for pid in pids.values()), "nothing outlives the comparison"


async def test_a_server_that_dies_at_start_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    log = tmp_path / "log"
    dying = ServerProcess("peer", command, HttpAddress("http", "127.0.0.1", 9), log)
    with dying as server, pytest.raises(ServiceUnavailable, match="ended with status 3") as failed:
        await server.ready(30)
    assert str(log) in (failed.value.hint or "") and "why" in log.read_text()


def test_a_command_that_does_not_exist_is_an_error_to_act_on(tmp_path: Path) -> None:
    server = ServerProcess("peer", [str(tmp_path / "none")], HttpAddress("http", "127.0.0.1", 9), tmp_path / "log")
    with pytest.raises(SetupError):
        server.__enter__()
