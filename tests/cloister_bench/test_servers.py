import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cloister.addresses import HttpAddress
from cloister.errors import ServiceUnavailable, SetupError
from cloister_bench.messages import Workload
from cloister_bench.report import Percentiles, RunReport
from cloister_bench.servers import Comparison, ServerProcess, Side, Sides
from cloister_bench.suite.measurement import Measured, Point

NONE = Percentiles(None, None, None)
LOAD = Workload(input_tokens=2, output_tokens=3, requests_per_user=2, warmup=0)


def test_ratios_compare_rounds_and_a_peer_that_answered_nothing_has_none() -> None:
    measured = Measured()
    rates = {("ours", 1): (10, 30, 20), ("ours", 8): (100, 300, 500), ("peer", 1): (10, 10, 10), ("peer", 8): (0, 0, 0)}
    for (name, users), each in rates.items():
        for round, rate in enumerate(each):
            measured.add(Point(name, users, 2, 3), round, RunReport(users, rate, NONE, NONE, 0))
    comparison = Comparison(["ours", "peer"], measured)
    assert comparison.throughput("ours") == {1: 20, 8: 300}
    assert comparison.ratios() == {"ours": {"peer": {1: 2.0}}}
    assert [run.output_tokens_per_s for run in comparison.median_runs("ours")] == [20, 300]
    document = json.loads(json.dumps(comparison.as_json()))
    assert document["ratios"] == {"ours": {"peer": {"1": 2.0}}}
    assert [[run["users"] for run in runs] for runs in document["servers"]["ours"]["rounds"]] == [[1, 8]] * 3


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


async def test_a_server_is_measured_while_the_others_are_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, peer = servers = [start("ours", tmp_path), start("peer", tmp_path)]
    pids = {server.name: server.pid for server in servers}
    sides = Sides([Side("open", ours, "open"), Side("partitioned", ours, "partitioned"), Side("peer", peer)], LOAD)
    measured: list[str] = []

    def awake() -> list[str]:
        states = {name: psutil.Process(pid).status() for name, pid in pids.items()}
        return [name for name, state in states.items() if state != psutil.STATUS_STOPPED]

    def pause(server: ServerProcess, paused: Callable[[ServerProcess], None] = ServerProcess.pause) -> None:
        for _ in range(200):  # a process stops at its next chance, not at once
            if awake() == [server.name]:
                measured.append(server.name)
                return paused(server)
            time.sleep(0.01)
        raise AssertionError(f"{awake()} run while {server.name} is measured")

    try:
        await sides.start()
        monkeypatch.setattr(ServerProcess, "pause", pause)
        runs = [await sides.measure(Point(name, 2, 2, 3), 0) for name in ("open", "partitioned", "peer", "open")]
    finally:
        for server in servers:
            server.__exit__(None, None, None)
    assert measured == ["ours", "ours", "peer", "ours"] and all(run.errors == 0 for run in runs)
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


def test_a_server_ends_with_the_process_that_started_it() -> None:
    starts = (
        "import subprocess, sys; from cloister_bench import servers as m;"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; print(1, flush=True); signal.pause()'],"
        " start_new_session=True, preexec_fn=m.end_with_parent, stdout=subprocess.PIPE);"
        "p.stdout.read(1); print(p.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", starts], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert select.select([server], [], [], 20)[0]
    finally:
        os.close(server)
        parent.stdout.close()
