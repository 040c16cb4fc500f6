"""Every benchmark's short form on the real model, as a user starts it: it ends well, and its numbers are there."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.served import Command

pytestmark = [pytest.mark.release, pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.parametrize(
    "arguments", [("levels", "--users", "1", "--rounds", "1"), ("mpc", "--lengths", "256", "--repeats", "1")]
)
def test_a_short_run_ends_well(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if arguments[0] == "mpc" and find_spec("spu") is None:
        pytest.skip("SPU is not installed: make mpc")
    numbers = tmp_path / "numbers.json"
    bench = Command(tmp_path / "log", "bench", *arguments, "--json", str(numbers))
    assert bench.process.wait(3000) == 0, bench.said
    document = json.loads(numbers.read_text())
    assert document["runs"] and not document["failed"]


def test_a_load_on_a_running_server(real_server: str, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    load = ("--users", "1,4", "--requests-per-user", "2", "--output-tokens", "16", "--json", str(numbers))
    bench = Command(tmp_path / "log", "bench", "peers", "--server", real_server, *load)
    assert bench.process.wait(600) == 0, bench.said
    runs = json.loads(numbers.read_text())["runs"]
    assert [run["users"] for run in runs] == [1, 4] and all(run["errors"] == 0 for run in runs)
