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
from cloister_bench.load import Workload
from cloister_bench.peers import Bench, Comparison, Plan
from cloister_bench.servers import ServerProcess

LOAD = Workload(input_tokens=2, output_tokens=3, requests_per_user=2, warmup=0)


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
    server = ServerProcess(name, command, HttpAddress("http", "127.0.0.1", 9), folder / f"{name}.log")
    server._environment["PYTHONPATH"] = "."
    server.__enter__()
    while not said.exists():
        assert psutil.pid_exists(server.pid), (folder / f"{name}.log").read_text()
        time.sleep(0.02)
    server.address = HttpAddress.parse(said.read_text())
    return server


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def test_a_server_is_measured_while_the_others_are_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    servers = [start("ours", tmp_path), start("peer", tmp_path)]
    pids = {server.name: server.pid for server in servers}
    results, measured = Comparison(Plan((1, 2), 2, LOAD), "both"), list[str]()

    def awake() -> list[str]:
        states = {name: psutil.Process(pid).status() for name, pid in pids.items()}
        return [name for name, state in states.items() if state != psutil.STATUS_STOPPED]

    def pause(server: ServerProcess, paused: Callable[[ServerProcess], None] = ServerProcess.pause) -> None:
        if server.name in measured or len(measured) == 1:  # from then on both were started and paused
            for _ in range(200):  # a process stops at its next chance, not at once
                if awake() == [server.name]:
                    break
                time.sleep(0.01)
            else:
                raise AssertionError(f"{awake()} run while {server.name} is measured")
        measured.append(server.name)
        paused(server)

    monkeypatch.setattr(ServerProcess, "__enter__", lambda server: server)
    monkeypatch.setattr(ServerProcess, "pause", pause)
    monkeypatch.setattr("shutil.rmtree", lambda folder: None)
    Bench(results, Silent()).run(servers, ())
    assert measured == ["ours", "peer", *["ours", "peer"] * 2, *["peer", "ours"] * 2]
    assert all(not run.errors for rounds in results.measured.values() for run in rounds.values())
    assert not any(psutil.pid_exists(pid) for pid in pids.values()), "nothing outlives the comparison"


def test_a_server_that_dies_at_start_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('why'); raise SystemExit(3)"]
    log = tmp_path / "log"
    dying = ServerProcess("peer", command, HttpAddress("http", "127.0.0.1", 9), log)
    with dying as server, pytest.raises(ServiceUnavailable, match="ended with status 3") as failed:
        server.wait(30)
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
