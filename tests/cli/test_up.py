"""The parts that `cloister up` starts, with commands that cost nothing. All of it: tests/serving/test_cloud.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from cloister.cli.up import Parts, UpOptions, _start
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import SetupError

SLEEPS = "import time, os; print('API  http://h:1/v1', os.getpid(), flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["cloister.cli.up"], "_command", lambda words: [sys.executable, "-c", *words])


def test_parts_end_with_what_started_them(capfd: pytest.CaptureFixture[str]) -> None:
    with ExitStack() as stack:
        parts = Parts(stack)
        assert parts.start("one", [SLEEPS], r"API +(http://\S+)/v1") == "http://h:1"
        pid = int(parts.start("two", [SLEEPS], r"v1 (\d+)"))
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)
    assert capfd.readouterr().out.startswith("one     API  http://h:1/v1")


def test_a_part_that_ends_is_named() -> None:
    with ExitStack() as stack:
        parts = Parts(stack)
        with pytest.raises(SetupError, match="before it was ready"):
            parts.start("node", ["print('no')"], "API")
        with pytest.raises(SetupError, match="The node ended"):
            parts.wait()
        with pytest.raises(SetupError, match="failed"):
            parts.run(["raise SystemExit(3)"])
        key = os.environ.get("CLOISTER_API_KEY", DEVELOPMENT_KEY)
        parts.run([f"import os; assert os.environ['CLOISTER_API_KEY'] == {key!r}"])


@pytest.mark.parametrize(("relay", "issuer"), [(False, False), (True, False), (False, True), (True, True)])
def test_each_part_knows_the_others(tmp_path: Path, relay: bool, issuer: bool) -> None:
    started: dict[str, list[str]] = {}

    class Noted:
        def start(self, name: str, words: Sequence[str], ready: str) -> str:
            started[name] = list(words)
            return f"http://{name}"

        def run(self, words: Sequence[str]) -> None:
            started["run"] = list(words)

    _start(Noted(), UpOptions(relay=relay, issuer=issuer), tmp_path)  # type: ignore[arg-type]
    assert set(started) == {"node", "proxy"} | ({"relay"} if relay else set()) | (
        {"issuer", "run"} if issuer else set()
    )
    assert ("--relay" in started["proxy"]) == relay and ("--issuer" in started["proxy"]) == issuer
    assert ("--cloud" in started["node"]) == issuer
