"""The document of `bench obfuscation`, its targets, tables and figures. Measures nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloister.bench.suite import documents
from cloister.bench.suite.documents import Document, Drawing, Row, Table, Target, find, lines, number, targets_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _slowest(document: Document) -> float | None:
    row = find(document["latency"], lambda_max=512, tokens=8)
    return None if row is None else float(row["seconds"])


def _advantage(fakes: str) -> Any:
    def measured(document: Document) -> float | None:
        rows = [row["advantage"] for row in document["distinguisher"] if row["fakes"] == fakes]
        return max(rows, default=None)

    return measured


TARGETS = (
    Target("512 candidates for eight tokens, s", 20.0, _slowest, "at most"),
    Target("best bet's advantage with the sampling model", 0.1, _advantage("sampled"), "at most"),
    Target("best bet's advantage against random names", None, _advantage("random")),
)


@dataclass
class Results(documents.Results):
    """`curves`: λ found, for each secret and ε; `latency`: seconds; `distinguisher`: bets."""

    curves: list[Row] = field(default_factory=list)
    latency: list[Row] = field(default_factory=list)
    distinguisher: list[Row] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    targets = TARGETS

    def numbers(self) -> Document:
        return {"curves": self.curves, "latency": self.latency, "distinguisher": self.distinguisher}

    def remarks(self) -> Document:
        return {"skipped": self.skipped, "seconds": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    curves = [
        [row["category"], number(row["epsilon"]), number(row["mean"]), str(row["secrets"])]
        for row in document["curves"]
    ]
    latency = [
        [str(row["lambda_max"]), number(row["epsilon"]), str(row["found"]), number(row["seconds"])]
        for row in document["latency"]
    ]
    bets = [
        [
            row["fakes"],
            row["bet"],
            f"{row['right']}/{row['of']}",
            number(row["advantage"]),
            f"{number(row['low'])} … {number(row['high'])}",
        ]
        for row in document["distinguisher"]
    ]
    return [
        Table("Substitutes found (λ)", ("category", "ε", "mean λ", "secrets"), curves),
        Table("Sampling", ("λ_max", "ε", "found", "seconds"), latency, labels=0),
        Table("Who has the sampling model bets on", ("fakes", "bet", "right", "advantage", "95%"), bets, labels=2),
        targets_table(document["targets"]),
    ]


def _draw_curves(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    lines(axes[0], rows, "epsilon", "mean", "category", {})
    for name in dict.fromkeys(row["category"] for row in rows):
        mine = [row for row in rows if row["category"] == name]
        low, high = [row["low"] for row in mine], [row["high"] for row in mine]
        axes[0].fill_between([row["epsilon"] for row in mine], low, high, alpha=0.15)
    axes[0].set(xscale="log", xlabel="ε", ylabel="λ", ylim=(0, None))
    axes[0].legend()
    return "substitutes found for secrets of clinical notes"


def _draw_latency(rows: list[Row], axes: tuple[Axes, ...]) -> str:
    named = [{**row, "name": f"ε = {row['epsilon']:.3g}"} for row in rows]
    lines(axes[0], named, "lambda_max", "seconds", "name", {})
    axes[0].set(xlabel="λ_max", ylabel="s", ylim=(0, None))
    axes[0].legend()
    return f"sampling for {rows[0]['tokens']} tokens"


FIGURES = {
    "curves": Drawing(lambda document: document["curves"], _draw_curves),
    "latency": Drawing(lambda document: document["latency"], _draw_latency),
}
