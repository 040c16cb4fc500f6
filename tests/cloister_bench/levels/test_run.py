"""The whole measurement on a real server with a tiny model, and what is kept when a part of it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloister.errors import ServiceUnavailable
from cloister.models.source import ModelFolder
from cloister_bench.levels import run as levels_run
from cloister_bench.levels.plan import FULL, QUICK, SERVED, Plan, Results
from cloister_bench.levels.run import Bench, why_no_mpc
from cloister_bench.load import RunReport
from cloister_bench.messages import Answer, BrokenAnswer
from cloister_bench.random_model import write_random_model
from cloister_bench.suite.measurement import Point
from tests.cli.conftest import commands_are_made_once, run
from tests.cloister_bench.fakes import TINY
from tests.cloister_bench.fakes import run as made_run

__all__ = ["commands_are_made_once", "run"]
SMALL = Plan(users=(1, 2), input_tokens=16, output_tokens=4, requests=1, rounds=1, few=1, mpc_tokens=2)


class Silent:
    def begin(self, part: str, total: int) -> None: ...

    def advance(self, what: str) -> None: ...

    def say(self, what: str) -> None: ...


def test_every_level_is_measured_and_nothing_is_left_behind(tmp_path: Path, smollm_folder: ModelFolder) -> None:
    tiny = write_random_model(tmp_path, TINY, like=smollm_folder)
    others = set(psutil.Process().children(recursive=True))
    results = Results(SMALL, tiny.name)
    Bench(results, tiny, Silent(), arguments=("--kv-cache-mib", "64", "--mpc", "off")).run(("levels",))
    document = results.document()
    assert document["failed"] == [] and {one["level"] for one in document["runs"]} == set(SERVED)
    assert len(document["runs"]) == len(SMALL.sides())
    assert all(one["tokens_per_s"] > 0 and one["errors"] == 0 and one["ttft_ms"] > 0 for one in document["runs"])
    assert all(one["prompt_tokens"] == 16 * one["users"] for one in document["runs"] if one["level"] != "obfuscated")
    left = set(psutil.Process().children(recursive=True)) - others
    assert not any("cloister" in " ".join(process.cmdline()) for process in left)


class StartingNode:
    """Parties that start after one refusal; `shared` fails for two users."""

    def __init__(self, *_: object) -> None:
        self.refusals = ["HTTP 503"]

    def measure(self, point: Point, seed: int) -> RunReport:
        if point.users > 1 and point.level == "shared":
            raise ServiceUnavailable("It is gone.")
        return made_run(point.users, 10.0)

    def ask(self, level: str, input_tokens: int, output_tokens: int, seed: int) -> Answer:
        if self.refusals:
            raise BrokenAnswer(self.refusals.pop())
        return Answer(sent=0.0, first_token=20.0, last_token=30.0, prompt_tokens=16, output_tokens=2, gaps=[])


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> StartingNode:
    node = StartingNode()

    @contextmanager
    def started(server: object) -> Iterator[StartingNode]:
        yield node

    monkeypatch.setattr(levels_run, "started", started)
    monkeypatch.setattr(levels_run, "RETRY_S", 0.0)
    monkeypatch.setattr(levels_run, "why_no_mpc", lambda folder: None)
    return node


def test_a_side_that_fails_is_noted_and_the_others_are_measured(starting: StartingNode, tmp_path: Path) -> None:
    results, saved = Results(SMALL, "m"), []
    bench = Bench(results, ModelFolder("m", tmp_path, {}), Silent(), lambda: saved.append(len(results.measured.rounds)))
    bench.run(("levels", "mpc"))
    sides = SMALL.sides()
    [failed] = results.failed
    assert failed == {"part": "shared, 2 users, 16 in, 4 out", "reason": "It is gone."}
    assert len(results.document()["runs"]) == len(sides) - 1 and saved[: len(sides)] == list(range(len(sides)))
    assert (results.mpc["first_token_s"], results.mpc["seconds_per_token"]) == (20.0, 10.0)


def test_parties_that_fail_otherwise_are_not_asked_again(starting: StartingNode, tmp_path: Path) -> None:
    starting.refusals = ["HTTP 503", "HTTP 500"]
    results = Results(SMALL, "m")
    Bench(results, ModelFolder("m", tmp_path, {}), Silent()).run(("mpc",))
    assert results.failed == [{"part": "mpc", "reason": "HTTP 500"}] and starting.refusals == ["HTTP 503"]


def test_without_the_level_s_distribution_it_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cloister_mpc.offer", None)
    assert "`make mpc`" in (why_no_mpc(ModelFolder("m", tmp_path, {})) or "")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan, set[str]]]:
    """`bench levels` without a server. What it was asked to measure."""
    asked: list[tuple[Plan, set[str]]] = []

    def measure(bench: Bench, parts: set[str]) -> None:
        asked.append((bench._plan, parts))

    monkeypatch.setattr(Bench, "run", measure)
    return asked


Run = Callable[..., Any]


def test_options_reach_the_plan_and_the_readme_s_table_is_printed(
    run: Run, planned: list[tuple[Plan, set[str]]], tmp_path: Path
) -> None:
    numbers = tmp_path / "levels.json"
    result = run("bench", "levels", "--json", str(numbers), "--users", "1,4", "--rounds", "5", "--parts", "levels")
    assert result.exit_code == 0 and "| `partitioned` (default) |" in result.stdout
    plan, parts = planned[0]
    assert (plan.users, plan.rounds, plan.requests, parts) == ((1, 4), 5, FULL.requests, {"levels"})
    assert json.loads(numbers.read_text())["runs"] == []
    printed = run("bench", "levels", "--quick", "--json", "-")
    assert json.loads(printed.stdout)["quick"] is True and planned[1] == (QUICK, {"levels", "mpc"})


def test_help_has_examples(run: Run) -> None:
    assert "cloister bench levels --json levels.json --plot-dir plots" in run("bench", "levels", "--help").stdout


def test_a_server_that_does_not_start_says_its_last_line(tmp_path: Path) -> None:
    node = levels_run.Node(tmp_path / "none", tmp_path, ())
    with pytest.raises(ServiceUnavailable, match="ended with status") as failed, levels_run.started(node):
        raise AssertionError("it started")
    assert failed.value.hint
