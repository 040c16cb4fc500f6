"""`cloister serve` as a user starts it, for tests that want the whole node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cloister.process.sandbox.credentials import UNPRIVILEGED


class Command:
    """A running `python -m cloister …` in a session of its own; what it says goes to a file."""

    def __init__(self, log: Path, *arguments: str, before: Sequence[str] = ()) -> None:
        self._log = log
        self._name = " ".join(("cloister", *arguments[:2]))
        command = [*before, sys.executable, "-m", "cloister", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "COLUMNS": "200"}, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def wait_for(self, pattern: str, patience_s: float = 240) -> str:
        """What the pattern's group finds in what it says; the first start converts the model, hence the patience."""
        end = time.monotonic() + patience_s
        while (found := re.search(pattern, self.said)) is None:
            assert self.process.poll() is None, f"{self._name} ended:\n{self.said}"
            assert time.monotonic() < end, f"{self._name} is not up:\n{self.said}"
            time.sleep(0.1)
        return found[1]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def words_of_children(self) -> Iterator[str]:
        """What the list of processes shows of them."""
        for one in self.children():
            with suppress(psutil.NoSuchProcess):  # a vault may just end
                yield from one.cmdline()

    def child(self, role: str, patience_s: float = 20) -> psutil.Process:
        """The one process of this role: the first of its line, should it have gone into a namespace. Beside it there
        may just be one that ends, or a fork that has not yet its own name."""
        end = time.monotonic() + patience_s
        while True:
            mine = [one for one in self.children() if is_a(one, role)]
            first = [one for one in mine if _parent(one) not in mine]
            if len(first) == 1 or time.monotonic() > end:
                [found] = first
                return found
            time.sleep(0.05)

    def stop(self) -> int:
        """Ask it to end as Ctrl-C would; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise


def _parent(process: psutil.Process) -> psutil.Process | None:
    with suppress(psutil.Error):  # it may have ended by now
        return process.parent()
    return None


def is_a(process: psutil.Process, role: str) -> bool:
    """Whether it is alive and was forked for this role."""
    try:
        return process.cmdline()[:1] == [f"cloister {role}"] and lives(process)
    except psutil.Error:
        return False


def is_confined(process: psutil.Process) -> bool:
    """Whether it gave up what a process that serves the network does not need (process/sandbox/confinement.py)."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines)
    as_nobody = os.geteuid() != 0 or process.uids().real == UNPRIVILEGED
    return as_nobody and (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)


def lives(process: psutil.Process) -> bool:
    """Whether it runs, and does not just wait to be buried."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Server(Command):
    """`cloister serve` on a free port, with what tests want unless the arguments say otherwise.

    Without `mpc`, whose parties take gigabytes, without verified decoding of a random share, and without a detector,
    which compiles its rules for seconds. With one
    compute thread: two that wait for each other are slow where another group of tests has the other core.
    """

    def __init__(self, log: Path, *arguments: str) -> None:
        usual = {"--mpc": "off", "--threads": "1", "--verify": "off"}
        added = [word for option in usual.items() if option[0] not in arguments for word in option]
        if "--detector" not in arguments:
            added.append("--no-detector")
        super().__init__(log, "serve", "--port", "0", *added, *arguments)

    def url(self, patience_s: float = 240) -> str:
        """Where it listens, once it says so."""
        return self.wait_for(r"API +(https?://\S+)/v1", patience_s)


@contextmanager
def running_server(log: Path, *arguments: str) -> Iterator[Server]:
    server = Server(log, *arguments)
    try:
        yield server
    finally:
        server.stop()
