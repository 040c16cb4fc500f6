"""`cloister bench mpc` without parties: what it is told, what it shows and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("spu", reason="generation on shares needs the distribution cloister-mpc")

from cloister_bench.mpc.steps import Bench, Plan
from tests.cloister_bench.mpc.fakes import results
from tests.cloister_mpc.local import SHAPE

Run = Callable[..., Any]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Whatever is to be measured comes out as made up. What the bench was told."""
    told: list[dict[str, Any]] = []

    def run(bench: Bench) -> None:
        made = results()
        bench._results.runs = made.runs
        if bench._plan.repeats == 7:
            bench._results.failed.append({"part": "lengths", "reason": "it was told so"})
        bench._save()
        told.append({"plan": bench._plan})

    monkeypatch.setattr(Bench, "run", run)
    monkeypatch.setattr("cloister_mpc.provider.calibration.prepare", lambda folder: (SHAPE, None))
    return told


def test_numbers_tables_and_plots_are_written(run: Run, measured: list[dict[str, Any]], tmp_path: Path) -> None:
    numbers, plots = tmp_path / "mpc.json", tmp_path / "plots"
    result = run("bench", "mpc", "--json", str(numbers), "--plot-dir", str(plots))
    assert result.exit_code == 0, result.output
    document = json.loads(numbers.read_text())
    first = ["method", "seq", "seconds", "megabytes", "messages", "lan_seconds", "wan_seconds"]
    assert list(document["runs"][0])[:7] == first
    assert len(list(plots.glob("*.png"))) == 1
    assert "mpcache" in result.stdout
    assert measured[0] == {"plan": Plan()}


def test_options_reach_the_plan(run: Run, measured: list[dict[str, Any]]) -> None:
    result = run("bench", "mpc", "--lengths", "256,512", "--repeats", "5", "--json", "-")
    assert json.loads(result.stdout)["plan"]["lengths"] == [256, 512]
    assert measured[0] == {"plan": Plan((256, 512), 5)}


def test_what_failed_is_said_and_the_rest_is_kept(run: Run, measured: list[dict[str, Any]], tmp_path: Path) -> None:
    result = run("bench", "mpc", "--repeats", "7", "--json", str(tmp_path / "mpc.json"))
    assert result.exit_code == 1 and "lengths: it was told so" in result.stderr
    assert json.loads((tmp_path / "mpc.json").read_text())["runs"]


def test_a_wrong_length_names_right_ones(run: Run) -> None:
    result = run("bench", "mpc", "--lengths", "100")
    assert result.exit_code == 2 and "256,1024" in result.stderr and "Traceback" not in result.output
