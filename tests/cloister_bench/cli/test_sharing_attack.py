"""`cloister bench sharing-attack` with secrets from a file, offline."""

from __future__ import annotations

import json
from pathlib import Path

from cloister_bench.sharing.attack_results import GUESSING
from tests.cli.conftest import Run

OWN = {
    "plans": {"templates": ["We sell {what} in {d4}."], "slots": {"what": ["the {kind} mill"], "kind": ["old", "new"]}}
}


def test_secrets_come_from_a_file(run: Run, tmp_path: Path) -> None:
    file, numbers = tmp_path / "own.json", tmp_path / "numbers.json"
    file.write_text(json.dumps(OWN))
    options = [
        "--secrets",
        file,
        "--quick",
        "--policies",
        "partition,global",
        "--json",
        numbers,
        "--plot-dir",
        tmp_path,
    ]
    result = run("bench", "sharing-attack", *map(str, options))
    assert result.exit_code == 0, result.output
    rows = json.loads(numbers.read_text())["offline"]
    assert {row["family"] for row in rows} == {"plans"} and (tmp_path / "sharing-attack.png").exists()
    plain = {row["policy"]: row["count"] for row in rows if row["attacker"] == "plain"}
    assert plain == {"partition": GUESSING, "global": 1.0}


def test_help_has_examples_and_unknown_names_are_said(run: Run) -> None:
    assert "cloister bench sharing-attack --secrets mine.json" in run("bench", "sharing-attack", "--help").stdout
    assert "There is no family 'x'" in run("bench", "sharing-attack", "--families", "x").stderr
