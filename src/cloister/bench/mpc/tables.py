"""A measurement's document as tables, ready to be read beside the figures. Knows numbers and labels only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cloister.bench.suite.results import Document, Row, write_text
from cloister.bench.suite.tables import Table, number, targets_table

COSTS = {
    "megabytes": "MB",
    "messages": "messages",
    "cpu_seconds": "processor s",
    "seconds": "s here",
    "lan_seconds": "s, LAN",
    "lan_cpu_seconds": "s, LAN, from processor s",
    "wan_seconds": "s, WAN",
}
BRIEF = ("megabytes", "messages", "seconds", "lan_seconds", "wan_seconds")
OPERATOR = {"method": "", "program": "program", "operator": "operator", "times": "times"}


def tables(document: Document) -> list[Table]:
    """For a terminal: fewer columns than in the report, no operators, targets last."""
    return [*_costs(document, BRIEF), _quality(document["quality"]), _targets(document)]


def report(document: Document) -> str:
    """Every part there are numbers for, as Markdown, under a heading each."""
    lengths, ablation, *others = _costs(document, tuple(COSTS))
    step = [row for row in document["operators"] if row["program"] == "step"]
    layer = [row for row in document["operators"] if row["program"].startswith("step_")]
    every = (
        _targets(document),
        lengths,
        ablation,
        _operators("Where it goes: operators of a step", step),
        _operators("Operators of one layer that selects or is told what to read", layer),
        *others,
        _quality(document["quality"]),
        _composition(document["composition"]),
    )
    return "\n".join(table.markdown() for table in every if table.rows)


def write_report(document: Document, path: Path) -> None:
    """The report in a file of its own."""
    title = f"# What a token cost on secret shares: {document['model']}"
    write_text(f"{title}\n\n{report(document)}", path, "Choose another --report.")


def _costs(document: Document, costs: Sequence[str]) -> list[Table]:
    by_length = sorted((run for run in document["runs"] if run["protocol"] == "aby3"), key=lambda run: run["seq"])
    named = [{**run, "method": run["method"] + " (extrapolated)" * run["extrapolated"]} for run in by_length]
    two_party = [run for run in document["runs"] if run["protocol"] == "cheetah"]
    kinds: tuple[tuple[str, list[Row], dict[str, str]], ...] = (
        ("A token's cost (Figure 10)", named, {"seq": "T", "method": ""}),
        ("Step by step (Figure 11)", document["ablation"], {"step": "", "functions": "functions"}),
        ("Gathering (Table 2)", document["gathering"], {"way": ""}),
        ("Hierarchies (Table 6)", document["hierarchies"], {"levels": "levels"}),
        ("Layers with one selection (Figure 12)", document["shared_layers"], {"method": "", "layers": "layers"}),
        ("With and without a cache (Table 8)", document["necessity"], {"seq": "T", "cache": "cache"}),
        ("Two parties (Figure 18)", two_party, {"method": "", "seq": "T"}),
    )
    return [_table(title, rows, labels, {cost: COSTS[cost] for cost in costs}) for title, rows, labels in kinds]


def _table(title: str, rows: list[Row], labels: dict[str, str], numbers: dict[str, str]) -> Table:
    cells = [[*(str(row[label]) for label in labels), *(number(row[name]) for name in numbers)] for row in rows]
    return Table(title, (*labels.values(), *numbers.values()), cells, len(labels))


def _operators(title: str, rows: list[Row]) -> Table:
    sending = [row for row in rows if row["messages"]]
    return _table(title, sending, OPERATOR, {name: COSTS[name] for name in ("megabytes", "messages", "seconds")})


def _quality(rows: list[Row]) -> Table:
    compared = [row for row in rows if row["method"] != "full"]
    numbers = {"budget": "budget", "score": "score", "full_score": "full cache"}
    return _table("Quality in plaintext", compared, {"task": "task", "method": "method"}, numbers)


def _composition(rows: list[Row]) -> Table:
    cells = [
        [row["method"], str(row["seq"]), COSTS[key], number(row["composed"][key]), number(row["whole"][key])]
        for row in rows
        for key in COSTS
    ]
    return Table("Composed and whole", ("method", "T", "", "composed", "whole step"), cells, labels=3)


def _targets(document: Document) -> Table:
    return targets_table(row for row in document["targets"] if row["measured"] is not None)
