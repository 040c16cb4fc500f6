"""The whole measurement on a real server with a tiny model, and what is kept when a part of it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloister.errors import ServiceUnavailable
from cloister.models.source import ModelFolder
from cloister_bench import levels
from cloister_bench.levels import MPC, SERVED, Bench, Plan, Results
from cloister_bench.load import Answer, BrokenAnswer, RunReport
from cloister_bench.peers import Point
from cloister_bench.random_model import write_random_model
from tests.cli.conftest import commands_are_made_once, run
from tests.cloister_bench.fakes import TINY
from tests.cloister_bench.fakes import run as made_run

__all__ = ["commands_are_made_once", "run"]
SMALL = Plan(users=(1, 2), input_tokens=16, output_tokens=4, requests=1, rounds=1, few=1, mpc_tokens=2)


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def test_every_level_is_measured_and_nothing_is_left_behind(
    tmp_path: Path, smollm_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = write_random_model(tmp_path, TINY, like=smollm_folder)
    others = set(psutil.Process().children(recursive=True))
    results = Results(SMALL, tiny.name)
    small = partial(levels.OwnServer, arguments=("--kv-cache-mib", "64", "--mpc", "off"))
    monkeypatch.setattr(levels, "OwnServer", small)
    Bench(results, Silent()).run(tiny)
    document = results.document()
    assert document["failed"] == [] and {one["level"] for one in document["runs"]} == set(SERVED)
    assert len(document["runs"]) == len(SMALL.sides()) and document["mpc"] == {}
    assert all(one["tokens_per_s"] > 0 and one["errors"] == 0 and one["ttft_ms"] > 0 for one in document["runs"])
    left = set(psutil.Process().children(recursive=True)) - others
    assert not any("cloister" in " ".join(process.cmdline()) for process in left)


class StartingNode:
    """Parties that start after some refusals; `shared` fails for two users."""

    def __init__(self) -> None:
        self.refusals = ["HTTP 503"]
        self.address, self.api_key, self.model, self.levels = None, "", "m", (MPC,)

    def __enter__(self) -> StartingNode:
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self, timeout_s: float) -> None: ...

    def answered(self, server: object, point: Point, seed: int) -> RunReport:
        if point.users > 1 and point.side == "shared":
            raise ServiceUnavailable("It is gone.")
        return made_run(10.0)

    def ask_once(self, address: object, api_key: str, body: bytes, timeout_s: float) -> Answer:
        if self.refusals:
            raise BrokenAnswer(self.refusals.pop())
        return Answer(sent=0.0, first_token=20.0, last_token=30.0, output_tokens=2)


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> StartingNode:
    node = StartingNode()
    monkeypatch.setattr(levels, "OwnServer", lambda model, logs: node)
    monkeypatch.setattr(levels, "answered", node.answered)
    monkeypatch.setattr(levels, "ask_once", node.ask_once)
    monkeypatch.setattr(levels, "RETRY_S", 0.0)
    return node


def test_a_side_that_fails_is_noted_and_the_others_are_measured(starting: StartingNode, tmp_path: Path) -> None:
    results, saved = Results(SMALL, "m"), []
    bench = Bench(results, Silent(), lambda: saved.append(len(results.measured)))
    bench.run(ModelFolder("m", tmp_path, {}))
    [failed] = results.failed
    assert failed == {"part": "shared, 2 users", "reason": "It is gone."}
    assert len(results.document()["runs"]) == len(SMALL.sides()) - 1
    assert saved == sorted(saved) and set(saved) == set(range(1, len(SMALL.sides())))
    assert (results.mpc["first_token_s"], results.mpc["seconds_per_token"]) == (20.0, 10.0)


def test_parties_that_fail_otherwise_are_not_asked_again(starting: StartingNode, tmp_path: Path) -> None:
    starting.refusals = ["HTTP 503", "HTTP 500"]
    results = Results(replace(SMALL, users=(1,)), "m")
    Bench(results, Silent()).run(ModelFolder("m", tmp_path, {}))
    assert results.failed == [{"part": "mpc", "reason": "A request was not answered (HTTP 500)."}]
    assert starting.refusals == ["HTTP 503"]


Run = Callable[..., Any]


def test_options_reach_the_plan_and_the_readme_s_table_is_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned, numbers = list[Plan](), tmp_path / "levels.json"
    monkeypatch.setattr(Bench, "run", lambda bench, folder: planned.append(bench._results.plan))
    result = run("bench", "levels", "--json", str(numbers), "--users", "1,4", "--rounds", "5")
    assert result.exit_code == 0 and "| `partitioned` (default) |" in result.stdout
    assert planned == [Plan(users=(1, 4), rounds=5)]
    assert json.loads(numbers.read_text())["runs"] == []
    printed = run("bench", "levels", "--json", "-")
    assert json.loads(printed.stdout)["plan"]["output_tokens"] == 64 and planned[1] == Plan()


def test_help_has_examples(run: Run) -> None:
    assert "cloister bench levels --json levels.json --plot-dir plots" in run("bench", "levels", "--help").stdout


def test_a_server_that_does_not_start_is_noted(tmp_path: Path) -> None:
    results = Results(SMALL, "none")
    Bench(results, Silent()).run(ModelFolder("none", tmp_path / "none", {}))
    [failed] = results.failed
    assert failed["part"] == "server" and "ended with status" in failed["reason"]
