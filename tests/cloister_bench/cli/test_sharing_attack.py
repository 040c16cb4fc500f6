"""`cloister bench sharing-attack` in its quick form."""

from __future__ import annotations

import json
from pathlib import Path

from cloister_bench.sharing.attack_results import GUESSING
from tests.cli.conftest import Run


def test_every_family_is_attacked(run: Run, tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.json"
    result = run("bench", "sharing-attack", "--quick", "--json", str(numbers), "--plot-dir", str(tmp_path))
    assert result.exit_code == 0, result.output
    document = json.loads(numbers.read_text())
    rows = document["offline"]
    assert {row["family"] for row in rows} == set(document["plan"]["families"])
    assert (tmp_path / "sharing-attack.png").exists()
    plain = {(row["policy"], row["count"]) for row in rows if row["attacker"] == "plain"}
    assert {("partition", GUESSING), ("global", 1.0)} <= plain


def test_help_has_an_example(run: Run) -> None:
    assert "cloister bench sharing-attack --json" in run("bench", "sharing-attack", "--help").stdout
