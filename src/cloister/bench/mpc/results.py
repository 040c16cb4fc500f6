"""What was measured, as the rows of one document. Knows the numbers' meaning; measures, prints and draws nothing.

Megabytes are 10⁶ bytes, sent by all parties together; messages are one party's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloister.bench.mpc.cost import LAN, WAN, Cost, Tally
from cloister.bench.mpc.plan import Plan
from cloister.bench.mpc.targets import TARGETS
from cloister.bench.suite import results
from cloister.bench.suite.results import Document, Row

if TYPE_CHECKING:
    from cloister.bench.mpc.quality import QualityRow

NUMBERS = (
    *("runs", "quality", "ablation", "operators", "gathering", "hierarchies", "shared_layers"),
    *("necessity", "composition"),
)


def cost_row(tally: Tally) -> Row:
    """What every measurement reports."""
    return {
        "seconds": round(tally.seconds, 4),
        "megabytes": round(tally.bytes / 1e6, 4),
        "messages": tally.most_messages,
        "lan_seconds": round(LAN.seconds(tally), 4),
        "wan_seconds": round(WAN.seconds(tally), 4),
        "busiest_megabytes": round(tally.most_bytes / 1e6, 4),
        "cpu_seconds": round(tally.most_cpu, 4),
        "lan_cpu_seconds": round(LAN.seconds(tally) - tally.seconds + tally.most_cpu, 4),
    }


def operator_rows(cost: Cost, **labels: Any) -> list[Row]:
    """One for each operator that sends or takes time, dearest on a LAN first."""
    ordered = sorted(cost.operators.items(), key=lambda item: -LAN.seconds(item[1]))
    return [
        {**labels, "operator": name, "times": tally.times, **cost_row(tally)}
        for name, tally in ordered
        if tally.most_messages or tally.seconds > 1e-4
    ]


@dataclass
class Results(results.Results):
    """Rows of the kinds that `NUMBERS` names."""

    plan: Plan
    runs: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    ablation: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    gathering: list[Row] = field(default_factory=list)
    hierarchies: list[Row] = field(default_factory=list)
    shared_layers: list[Row] = field(default_factory=list)
    necessity: list[Row] = field(default_factory=list)
    composition: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    targets = TARGETS

    def add_run(self, method: str, protocol: str, seq: int, cost: Cost, **more: Any) -> None:
        """One row of `runs`, with the fields every reader may rely on first."""
        row = {"method": method, "protocol": protocol, "seq": seq, **cost_row(cost.whole)}
        self.runs.append({**row, "extrapolated": False, **more})

    def add_operators(self, method: str, program: str, seq: int, cost: Cost) -> None:
        """Where the cost of one program, or of a whole step, goes."""
        self.operators += operator_rows(cost, method=method, program=program, seq=seq)

    def add_quality(self, rows: Sequence[QualityRow]) -> None:
        """What each method scored on each task, the full cache beside it."""
        self.quality += [row._asdict() for row in rows]
        for task, score in {row.task: row.full_score for row in rows}.items():
            self.quality.append({"method": "full", "budget": 1.0, "task": task, "score": score, "full_score": score})

    def numbers(self) -> Document:
        return {name: list(getattr(self, name)) for name in NUMBERS}

    def remarks(self) -> Document:
        return {"left_out": list(self.left_out), "taken_s": round(self.seconds, 1)}
