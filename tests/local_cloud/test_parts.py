"""The commands of a cloud on one machine, with some that cost nothing. All of it: tests/chaos/test_cloud.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from cloister.config import DEVELOPMENT_KEY
from cloister.errors import SetupError
from cloister.local_cloud import parts as parts_module
from cloister.local_cloud.parts import Parts

SLEEPS = "import time, os; print('API  http://h:1/v1', os.getpid(), flush=True); time.sleep(60)"
STARTS = f"""
import subprocess, sys, time
from cloister.local_cloud.parts import begin
print(begin([sys.executable, "-c", {SLEEPS!r}], {{}}, subprocess.DEVNULL).pid, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "command", lambda words: [sys.executable, "-c", *words])


def test_parts_end_with_what_started_them(capfd: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        parts = Parts(stack)
        assert parts.start("one", [SLEEPS], r"API +(http://\S+)/v1") == "http://h:1"
        pid = int(parts.start("two", [SLEEPS], r"v1 (\d+)"))
        assert psutil.pid_exists(pid)
        parts.check()
    assert not psutil.pid_exists(pid)
    assert capfd.readouterr().out.startswith("one     API  http://h:1/v1")


def test_parts_end_with_a_starter_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        part = psutil.Process(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGKILL)
    end = time.monotonic() + 60
    while part.is_running() and part.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end, "it lives on"
        time.sleep(0.05)


def test_a_part_that_ends_is_named() -> None:
    with ExitStack() as stack:
        parts = Parts(stack)
        with pytest.raises(SetupError, match="before it was ready"):
            parts.start("node", ["print('no')"], "API")
        with pytest.raises(SetupError, match="The node ended"):
            while True:  # its output ends a moment before it does
                parts.check()
        with pytest.raises(SetupError, match="failed"):
            parts.run(["raise SystemExit(3)"])
        key = os.environ.get("CLOISTER_API_KEY", DEVELOPMENT_KEY)
        parts.run([f"import os; assert os.environ['CLOISTER_API_KEY'] == {key!r}"])
