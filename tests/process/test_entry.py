"""How a server ends: in order when asked once, at once when asked twice or when the order takes too long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloister.config import Settings
from cloister.process.entry import become
from cloister.process.hardening import ENDING, WIPE_FREED_MEMORY

SERVER = """
import asyncio, os, sys, time, msgspec
from cloister.messages.cli_controller import StartController
from cloister.process import entry

entry.STOP_S = float(sys.argv[1])
note = os.memfd_create("settings")
os.write(note, msgspec.json.encode(StartController("{}", "m", "/m", 0.0)))
os.lseek(note, 0, os.SEEK_SET)
sys.argv[1] = str(note)

async def serve(start, console, stopped):
    print("up", flush=True)
    await stopped
    print("ending", flush=True)
    time.sleep(float(sys.argv[2]))  # as one does that waits for a child

entry.run_server("test", serve)
"""


@contextmanager
def server(patience_s: float, ending_s: float, before: str = "") -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", before + SERVER, str(patience_s), str(ending_s)]
    given = {**os.environ, **WIPE_FREED_MEMORY}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=given) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", ENDING)
def test_it_ends_in_order_with_one_line(number: signal.Signals) -> None:
    with server(600, 0) as process:
        assert heard(process) == "up"
        process.send_signal(number)
        said, errors = process.communicate()
    assert (process.returncode, said, errors) == (0, "ending\n", "Stopped.\n")


def test_who_asks_twice_does_not_wait() -> None:
    with server(600, 600) as process:
        assert heard(process) == "up"
        process.send_signal(signal.SIGINT)
        assert heard(process) == "ending"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_an_end_that_takes_too_long_is_cut_short() -> None:
    with server(0.05, 600) as process:
        assert heard(process) == "up"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "Stopped.\n")


def test_a_signal_that_comes_while_it_is_imported_is_heard_when_it_can_be() -> None:
    early = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); os.kill(os.getpid(), 2)\n"
    with server(600, 0, early) as process:
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "Stopped.\n")


def test_children_leave_the_end_to_who_started_them() -> None:
    child = """
import os, socket, sys
from cloister.process.hardening import ENDING, begin_child
a, b = socket.socketpair()
sys.argv = ["", str(b.detach())]
begin_child("test")
for number in ENDING:
    os.kill(os.getpid(), number)
print("here")
"""
    held = [sys.executable, "-c", child]
    block = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # noqa: E731
    done = subprocess.run(held, capture_output=True, text=True, preexec_fn=block, env=os.environ)
    assert done.stdout == "here\n"


def test_a_child_has_a_low_number_for_its_socket_however_many_files_its_parent_has() -> None:
    child = """
import fcntl, os, socket, sys
from cloister.process.hardening import begin_child
a, b = socket.socketpair()
sys.argv = ["", str(fcntl.fcntl(b, fcntl.F_DUPFD, 300))]
b.close()
control = begin_child("test")
a.send(b"here")
print(control.fileno() < 16, control.recv(9), os.path.exists("/proc/self/fd/300"))
"""
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
    assert done.stdout == "True b'here' False\n", done.stderr


def test_a_release_starts_without_what_brings_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str], dict[str, str]]] = []
    monkeypatch.setattr(os, "execve", lambda *told: seen.append(told))
    for name in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD"):
        monkeypatch.setenv(name, "/elsewhere")
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        for release in (None, b"{}"):
            become("cloister.controller", Settings(), "name", Path("model"), 0.0, release=release)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    (_, plain, all_of_it), (_, command, environment) = seen
    assert "-m" in plain and all_of_it["PYTHONPATH"] == "/elsewhere"
    assert command[-3].isdigit() and command[-2] == "cloister.controller" and "-S" in command
    assert {name for name in environment if name.startswith(("PYTHON", "LD_"))} == {"PYTHONMALLOC"}
