"""A measurement's document as Markdown tables, ready to be read beside the figures. Knows numbers and labels only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cloister.bench.mpc.rows import Row
from cloister.errors import SetupError

Document = dict[str, Any]
COSTS = {
    "megabytes": "MB",
    "messages": "messages",
    "cpu_seconds": "processor s",
    "seconds": "s here",
    "lan_seconds": "s, LAN",
    "lan_cpu_seconds": "s, LAN, from processor s",
    "wan_seconds": "s, WAN",
}


def report(document: Document) -> str:
    """Every part there are numbers for, under a heading each."""
    parts = (
        ("Targets", _targets(document["targets"])),
        ("A token's cost (Figure 10)", _lengths(document["runs"])),
        ("Step by step (Figure 11)", _costs(document["ablation"], {"step": "", "functions": "functions"})),
        ("Where it goes: operators of a step", _operators(document["operators"], "step")),
        ("Operators of one layer that selects or is told what to read", _operators(document["operators"], "step_")),
        ("Gathering (Table 2)", _costs(document["gathering"], {"way": ""})),
        ("Hierarchies (Table 6)", _costs(document["hierarchies"], {"levels": "levels"})),
        (
            "Layers with one selection (Figure 12)",
            _costs(document["shared_layers"], {"method": "", "layers": "layers"}),
        ),
        ("With and without a cache (Table 8)", _costs(document["necessity"], {"seq": "T", "cache": "cache"})),
        ("Two parties (Figure 18)", _costs(_of(document["runs"], "cheetah"), {"method": "", "seq": "T"})),
        ("Quality in plaintext", _quality(document["quality"])),
        ("Composed and whole", _composition(document["composition"])),
    )
    return "\n".join(f"### {title}\n\n{table}\n" for title, table in parts if table)


def write_report(document: Document, path: Path) -> None:
    """The report in a file of its own."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# What a token cost on secret shares: {document['model']}\n\n{report(document)}", "utf-8")
    except OSError as wrong:
        raise SetupError(f"{path} cannot be written: {wrong.strerror}.", hint="Choose another --report.") from None


def _lengths(runs: list[Row]) -> str:
    rows = sorted(_of(runs, "aby3"), key=lambda run: run["seq"])
    named = [{**run, "method": run["method"] + (" (extrapolated)" if run["extrapolated"] else "")} for run in rows]
    return _costs(named, {"seq": "T", "method": ""})


def _of(runs: list[Row], protocol: str) -> list[Row]:
    return [run for run in runs if run["protocol"] == protocol]


def _costs(rows: list[Row], labels: dict[str, str]) -> str:
    if not rows:
        return ""
    cells = ([*(str(row[label]) for label in labels), *(_number(row[cost]) for cost in COSTS)] for row in rows)
    return _table([*labels.values(), *COSTS.values()], cells)


def _operators(rows: list[Row], program: str) -> str:
    """Of the whole `step`, or of its programs whose names begin with `step_`."""
    mine = [
        row for row in rows if row["program"] == program or (program != "step" and row["program"].startswith(program))
    ]
    sending = [row for row in mine if row["messages"]]
    if not sending:
        return ""
    columns = {"method": "", "program": "program", "operator": "operator", "times": "times"}
    cells = (
        [
            *(str(row[name]) for name in columns),
            _number(row["megabytes"]),
            str(row["messages"]),
            _number(row["seconds"]),
        ]
        for row in sending
    )
    return _table([*columns.values(), "MB", "messages", "s here"], cells)


def _quality(rows: list[Row]) -> str:
    cells = (
        [row["task"], row["method"], f"{row['budget']:g}", _number(row["score"]), _number(row["full_score"])]
        for row in rows
        if row["method"] != "full"
    )
    return _table(["task", "method", "budget", "score", "full cache"], cells) if rows else ""


def _composition(rows: list[Row]) -> str:
    cells = (
        [row["method"], str(row["seq"]), COSTS[key], _number(row["composed"][key]), _number(row["whole"][key])]
        for row in rows
        for key in COSTS
    )
    return _table(["method", "T", "", "composed", "whole step"], cells) if rows else ""


def _targets(rows: list[Row]) -> str:
    known = [row for row in rows if row["measured"] is not None]
    verdicts = {None: "", True: "met", False: "missed"}
    cells = (
        [
            row["name"],
            "" if row["target"] is None else f"≥ {row['target']:g}",
            _number(row["measured"]),
            verdicts[row["met"]],
        ]
        for row in known
    )
    return _table(["", "target", "measured", ""], cells) if known else ""


def _table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
