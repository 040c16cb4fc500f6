"""Tables of a measurement's document: as Markdown here, on a terminal by the command line. Knows words and numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cloister.bench.suite.results import Row


@dataclass(frozen=True, slots=True)
class Table:
    """The first `labels` columns are words, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    caption: str | None = None

    def markdown(self) -> str:
        lines = [self.heads, ["---"] * len(self.heads), *self.rows]
        return f"### {self.title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def targets_table(rows: Iterable[Row]) -> Table:
    """What was not measured has no verdict; nor has what has no target."""
    return Table("Targets", ("", "target", "measured", ""), [_target_cells(row) for row in rows])


def _target_cells(row: Row) -> list[str]:
    sign = "≤" if row.get("bound") == "at most" else "≥"
    target = "-" if row["target"] is None else f"{sign} {row['target']:g}"
    known = row["measured"] is not None and row["met"] is not None
    met = "" if not known else "met" if row["met"] else "missed"
    return [row["name"], target, number(row["measured"]), met]
