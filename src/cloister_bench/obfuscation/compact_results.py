"""What `bench compact` measures, as a document and tables. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import mean

from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Row, Table, Target, targets_table


@dataclass(frozen=True, slots=True)
class Plan:
    cases: int
    fakes: int
    tokens: int
    lambdas: tuple[int, ...]


def _over(key: str) -> Callable[[Document], float | None]:
    def measured(document: Document) -> float | None:
        found = [float(row[key]) for row in document["cases"]]
        return round(mean(found), 4) if found else None

    return measured


TARGETS = (
    Target("real answers equal to the exact ones, of all", None, _over("equal")),
    Target("… of their first tokens", None, _over("first_equal")),
    Target("fakes alone compact: right by equal vectors", None, _over("paper_equal_vectors")),
    Target("all compact: right by equal vectors", None, _over("ours_equal_vectors")),
)


@dataclass
class Results(documents.Results):
    cost: list[Row] = field(default_factory=list)
    cases: list[Row] = field(default_factory=list)
    targets = TARGETS

    def numbers(self) -> Document:
        return {"cost": self.cost, "cases": self.cases}

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    cost = {"λ": "fakes", "tokens": "tokens"}
    for side in ("alone", "exact", "compact"):
        cost |= {f"{side} MiB": f"{side}_mib", f"{side} s": f"{side}_s", f"{side} processor s": f"{side}_processor_s"}
    return [
        Table.of("Prefill of λ+1 prompts", document["cost"], cost, labels=0),
        targets_table(document["targets"]),
    ]
