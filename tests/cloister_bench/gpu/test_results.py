from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister_bench.gpu.plan import FULL
from cloister_bench.gpu.results import FIGURES, Results, tables
from cloister_bench.suite.documents import draw_figures
from tests.cloister_bench.gpu.fakes import results


def verdicts(made: Results) -> dict[str, bool]:
    return {row["name"]: row["met"] for row in made.document()["targets"]}


def test_every_target_has_an_honest_verdict() -> None:
    met = verdicts(results())
    assert met["partitioned over open, a step, 64 × 64"] and met["partitioned over open, a step, 1 × 2,048"]
    assert met["open over the floor, 8 × 64"]
    assert met["open over transformers' generate, 32 × 64/64"], "180 over 100"
    assert not met["throughput of partitioned over open, 32 × 64/64"], "0.78"
    assert not met["one of eight attention processes beside its users' KV, MB"]
    assert met["obfuscated, λ = 8, 8 × 64, over λ = 0"], "1.07"
    assert not met["obfuscated, λ = 64, 1 × 64, over λ = 0"], "1.58"
    assert not any(verdicts(Results(FULL, "GPU")).values()), "what was not measured was not met"


def test_the_default_isolation_is_what_the_target_is_about() -> None:
    made = results()
    for row in made.rows:
        if row["part"] == "steps" and row.get("processes") == 8 and (row["users"], row["prompt"]) == (32, 64):
            row["ratio"] = 1.3
    met = verdicts(made)
    assert not met["partitioned over open, a step, 32 × 64"] and met["partitioned over open, a step, 8 × 64"]


def test_generate_counts_with_its_better_way() -> None:
    made = results()
    compiled = {"part": "transformers", "users": 8, "prompt": 64, "answer": 64}
    made.add({**compiled, "design": "transformers, compiled", "tokens_per_s": 170.0, "ttft_ms": 1.0})
    [row] = [row for row in made.document()["targets"] if row["name"].endswith("generate, 8 × 64/64")]
    assert row["measured"] == pytest.approx(180 / 170) and not row["met"]


def test_steps_say_how_far_they_are_from_the_floor_of_the_same_run() -> None:
    document = json.loads(json.dumps(results().document()))
    steps = [row for row in document["steps"] if row["design"] == "open"]
    assert steps and all(row["to_floor"] == pytest.approx(1.2, abs=1e-3) for row in steps)
    assert "floor_ms" not in next(iter(Results(FULL, "GPU", rows=results().rows[1:2]).numbers()["steps"]))


def test_the_same_is_said_once_and_the_unknown_not_at_all() -> None:
    made = results()
    count = len(made.rows)
    made.add(dict(made.rows[0]))
    assert len(made.rows) == count
    with pytest.raises(ValueError, match="no known part"):
        made.add({"part": "weather"})


def test_tables_show_settings_bits_and_what_is_not_offered() -> None:
    made = results()
    found = {table.title: table for table in tables(made.document())}
    steps = found["A decode step, over open's"]
    row = next(row for row in steps.rows if row[0] == "32 × 64")
    assert row[3:] == ["1.04", "1.02", "the same"]
    assert "obfuscated, λ = 64: not offered" in (steps.caption or "")
    [_, eight, *_] = found["A decode step of obfuscated"].rows
    assert eight[:2] == ["8", "8"] and eight[3:] == ["1.072", "the same"]
    for each in made.rows:
        if each.get("same_bits"):
            each["same_bits"] = False
    assert tables(made.document())[0].rows[0][-1] == "OTHERS"
    assert [table.rows for table in tables(Results(FULL, "GPU").document())][:-1] == [[], [], []]


def test_the_figure_is_a_picture_and_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    [path] = draw_figures(results().document(), tmp_path, FIGURES)
    assert path.stem == "gpu-steps" and path.read_bytes().startswith(b"\x89PNG")
    assert draw_figures(Results(FULL, "GPU").document(), tmp_path, FIGURES) == []
