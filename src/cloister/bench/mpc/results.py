"""What was measured, as one document. Knows the numbers' meaning; measures, prints and draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cloister.bench.mpc.cost import Cost
from cloister.bench.mpc.plan import Plan
from cloister.bench.mpc.rows import Row, cost_row, operator_rows
from cloister.bench.mpc.targets import targets_of

if TYPE_CHECKING:
    from cloister.bench.mpc.quality import QualityRow


@dataclass(slots=True)
class Results:
    """Grows as measurements end. `document` may be asked for at any time."""

    plan: Plan
    model: str
    runs: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    ablation: list[Row] = field(default_factory=list)
    operators: list[Row] = field(default_factory=list)
    gathering: list[Row] = field(default_factory=list)
    hierarchies: list[Row] = field(default_factory=list)
    shared_layers: list[Row] = field(default_factory=list)
    necessity: list[Row] = field(default_factory=list)
    composition: list[Row] = field(default_factory=list)
    failed: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    taken_s: float = 0.0

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

    def document(self) -> dict[str, Any]:
        """Plain values, ready for `json`."""
        parts = {
            name: list(getattr(self, name))
            for name in (
                *("runs", "quality", "ablation", "operators", "gathering", "hierarchies", "shared_layers"),
                *("necessity", "composition"),
            )
        }
        return {
            **parts,
            "targets": targets_of(parts),
            "model": self.model,
            "plan": asdict(self.plan),
            "failed": list(self.failed),
            "left_out": list(self.left_out),
            "taken_s": round(self.taken_s, 1),
        }
