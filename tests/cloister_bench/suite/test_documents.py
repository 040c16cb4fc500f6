"""Documents that were written by earlier versions can still be read, tabulated and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloister_bench.mpc import results as mpc_tables
from cloister_bench.suite.documents import Target, draw_figures, targets_table

DOCS = Path(__file__).parents[3] / "docs" / "bench"


def test_the_mpc_document(tmp_path: Path) -> None:
    document = json.loads((DOCS / "mpc.json").read_text())
    [costs] = mpc_tables.tables(document)
    assert len(costs.rows) == len(document["runs"])
    assert len(draw_figures(document, tmp_path, mpc_tables.FIGURES)) == 1


@pytest.mark.parametrize(
    ("target", "bound", "measured", "met", "shown"),
    [
        (2.0, "at least", 2.0, True, ["≥ 2", "2", "met"]),
        (2.0, "at most", 3.0, False, ["≤ 2", "3", "missed"]),
        (2.0, "at most", None, False, ["≤ 2", "-", ""]),
        (None, "at least", 3.0, None, ["-", "3", ""]),
    ],
)
def test_a_target_is_met_missed_not_measured_or_only_told(
    target: float | None, bound: str, measured: float | None, met: bool | None, shown: list[str]
) -> None:
    row = Target("speed", target, lambda document: measured, bound).verdict({})  # type: ignore[arg-type]
    assert row["met"] is met and ("reason" in row) == (measured is None)
    assert targets_table([row]).rows == [["speed", *shown]]
