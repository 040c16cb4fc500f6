"""`cloister serve` as a user starts it, for tests that want the whole house."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


class Server:
    """A running `cloister serve` on a free port; what it says goes to a file."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self._log = log
        command = [sys.executable, "-m", "cloister", "serve", "--port", "0", *arguments]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "COLUMNS": "200"}, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def url(self, patience_s: float = 240) -> str:
        """Where it listens, once it says so; the first start converts the model, hence the patience."""
        end = time.monotonic() + patience_s
        while (found := re.search(r"API +(http://\S+)/v1", self.said)) is None:
            assert self.process.poll() is None, f"cloister serve ended:\n{self.said}"
            assert time.monotonic() < end, f"cloister serve is not up:\n{self.said}"
            time.sleep(0.1)
        return found[1]

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """Ask it to end as Ctrl-C would; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise


@contextmanager
def running_server(log: Path, *arguments: str) -> Iterator[Server]:
    server = Server(log, *arguments)
    try:
        yield server
    finally:
        server.stop()
