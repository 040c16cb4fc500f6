"""What was measured so far, as one JSON document with its targets met or missed, and the files it goes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from cloister.errors import SetupError

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


@dataclass
class Results:
    """Grows as parts end; `document` may be asked for at any time. A suite adds fields for its numbers."""

    plan: Any
    model: str
    failed: list[Row] = field(default_factory=list, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    targets: ClassVar[tuple[Target, ...]] = ()

    def numbers(self) -> Document:
        """What the suite measured, as plain values."""
        raise NotImplementedError

    def remarks(self) -> Document:
        """What else the suite says of its run: what was left out, and how long it took."""
        raise NotImplementedError

    def document(self) -> Document:
        """Plain values, ready for `json`."""
        numbers = self.numbers()
        verdicts = [target.verdict(numbers) for target in self.targets]
        about = {"model": self.model, "plan": asdict(self.plan), "failed": list(self.failed)}
        return {**numbers, "targets": verdicts, **about, **self.remarks()}


def find(rows: Iterable[Row], **having: Any) -> Row | None:
    """The first row with these values."""
    return next((row for row in rows if having.items() <= row.items()), None)


def write_json(document: Document, path: Path) -> None:
    """Write a document so that two of them can be compared line by line."""
    write_text(json.dumps(document, indent=2) + "\n", path, "Choose another file.")


def write_text(text: str, path: Path, hint: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as wrong:
        raise SetupError(f"{path} cannot be written: {wrong.strerror}.", hint=hint) from None
