from __future__ import annotations

import pytest

from cloister_bench.suite.documents import Target, targets_table


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
    assert row["met"] is met
    assert targets_table([row]).rows == [["speed", *shown]]
