"""What a suite sets as its goals, and whether they were met: looked up in the document of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Document = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one number of the document; without a `target` the number is told beside the others."""

    name: str
    target: float | None
    measured: Callable[[Document], float | None]
    bound: Literal["at least", "at most"] = "at least"
    labels: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, document: Document) -> Row:
        """Its row; what was not measured was not met, and says so."""
        value, met = self.measured(document), None
        if self.target is not None:
            met = value is not None and (value >= self.target if self.bound == "at least" else value <= self.target)
        verdict = {"bound": self.bound, "target": self.target, "measured": value, "met": met}
        row = {"name": self.name, **self.labels, **verdict}
        return row if value is not None else {**row, "reason": "not measured"}
