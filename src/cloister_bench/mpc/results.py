"""The document of `bench mpc`. Megabytes are 10⁶ bytes of all parties together; messages one party's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from cloister_bench.mpc.cost import LAN, WAN, Cost, Tally
from cloister_bench.mpc.plan import STATIC, Plan
from cloister_bench.mpc.quality import QualityRow
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table, write_text

OURS = "mpcache"
LENGTHS = (1024, 2048)
LEAST = {"megabytes": 5.0, "messages": 1.5, "lan_seconds": 2.0}
NAMES = {
    "megabytes": "communication",
    "messages": "messages",
    "lan_seconds": "latency on a LAN",
    "lan_cpu_seconds": "latency on a LAN from processor seconds",
}
BUDGET = 0.1
LOWER_IS_BETTER = ("wikitext2", "novel", "generated_text")  # perplexities
BASELINES = ("full", "full_naive", "full_lean")  # the targets are set against the first, which is tuned


def _saving(document: Document, baseline: str, seq: int, key: str) -> float | None:
    ours, theirs = (find(document["runs"], method=name, protocol="aby3", seq=seq) for name in (OURS, baseline))
    return round(theirs[key] / ours[key], 3) if ours and theirs and ours[key] else None


def _quality_kept(document: Document, method: str = OURS) -> float | None:
    """At the budget of the target: the mean over tasks of what is kept of the full cache's score."""
    shares = [
        row["full_score"] / row["score"] if row["task"] in LOWER_IS_BETTER else row["score"] / row["full_score"]
        for row in document["quality"]
        if row["method"] == method and row["budget"] == BUDGET and row["score"] and row["full_score"]
    ]
    return round(sum(shares) / len(shares), 4) if shares else None


def _quality_ahead(document: Document) -> float | None:
    ours = _quality_kept(document)
    static = [kept for method in STATIC if (kept := _quality_kept(document, method)) is not None]
    return round(ours / max(static), 4) if ours is not None and static else None


_QUALITY = {"baseline": "full", "seq": None}
TARGETS = (
    *(
        Target(
            f"{NAMES[key]}, {baseline} over {OURS}, T = {seq}",
            LEAST.get(key) if baseline == BASELINES[0] else None,
            partial(_saving, baseline=baseline, seq=seq, key=key),
            labels={"baseline": baseline, "seq": seq},
        )
        for baseline in BASELINES
        for seq in LENGTHS
        for key in NAMES
    ),
    Target(f"quality kept at {BUDGET:.0%} of the cache", 0.98, _quality_kept, labels=_QUALITY),
    Target(f"quality over the best static baseline's at {BUDGET:.0%}", 1.0, _quality_ahead, labels=_QUALITY),
)


Kind = Literal["runs", "quality", "operators", "composition"]


def cost_row(tally: Tally) -> Row:
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


@dataclass
class Results(documents.Results):
    plan: Plan
    rows: dict[Kind, list[Row]] = field(default_factory=lambda: {kind: [] for kind in get_args(Kind)})
    left_out: list[str] = field(default_factory=list)
    targets = TARGETS

    def add_run(self, method: str, seq: int, cost: Cost) -> None:
        self.rows["runs"].append({"method": method, "protocol": "aby3", "seq": seq, **cost_row(cost.whole)})

    def add_operators(self, method: str, program: str, seq: int, cost: Cost) -> None:
        labels = {"method": method, "program": program, "seq": seq}
        self.rows["operators"] += [
            {**labels, "operator": name, "times": tally.times, **cost_row(tally)}
            for name, tally in sorted(cost.operators.items(), key=lambda item: -LAN.seconds(item[1]))
            if tally.most_messages or tally.seconds > 1e-4
        ]

    def add_quality(self, rows: Sequence[QualityRow]) -> None:
        full = {row.task: row._replace(method="full", budget=1.0, score=row.full_score) for row in rows}
        self.rows["quality"] += [row._asdict() for row in (*rows, *full.values())]

    def numbers(self) -> Document:
        return {kind: list(rows) for kind, rows in self.rows.items()}

    def remarks(self) -> Document:
        return {"left_out": list(self.left_out), "taken_s": round(self.seconds, 1)}


COSTS = {
    "MB": "megabytes",
    "messages": "messages",
    "processor s": "cpu_seconds",
    "s here": "seconds",
    "s, LAN": "lan_seconds",
    "s, LAN, from processor s": "lan_cpu_seconds",
    "s, WAN": "wan_seconds",
}
BRIEF = ("MB", "messages", "s here", "s, LAN", "s, WAN")


def tables(document: Document) -> list[Table]:
    """For a terminal: fewer columns than in the report, no operators, targets last."""
    return [_costs(document, BRIEF), _quality(document["quality"]), _targets(document)]


def report(document: Document) -> str:
    step = [row for row in document["operators"] if row["program"] == "step"]
    layer = [row for row in document["operators"] if row["program"].startswith("step_")]
    every = (
        _targets(document),
        _costs(document, tuple(COSTS)),
        _operators("Where it goes: operators of a step", step),
        _operators("Operators of one layer", layer),
        _quality(document["quality"]),
        _composition(document["composition"]),
    )
    return "\n".join(table.markdown() for table in every if table.rows)


def write_report(document: Document, path: Path) -> None:
    title = f"# What a token cost on secret shares: {document['model']}"
    write_text(f"{title}\n\n{report(document)}", path, "Choose another --report.")


def _costs(document: Document, costs: Sequence[str]) -> Table:
    rows = sorted((run for run in document["runs"] if run["protocol"] == "aby3"), key=lambda run: run["seq"])
    columns = {"T": "seq", "": "method", **{cost: COSTS[cost] for cost in costs}}
    return Table.of("A token's cost (Figure 10)", rows, columns, labels=2)


def _operators(title: str, rows: list[Row]) -> Table:
    columns = {"": "method", "program": "program", "operator": "operator", "times": "times"}
    columns |= {cost: COSTS[cost] for cost in ("MB", "messages", "s here")}
    return Table.of(title, (row for row in rows if row["messages"]), columns, labels=4)


def _quality(rows: list[Row]) -> Table:
    columns = {"task": "task", "method": "method", "budget": "budget", "score": "score", "full cache": "full_score"}
    return Table.of("Quality in plaintext", (row for row in rows if row["method"] != "full"), columns, labels=2)


def _composition(rows: list[Row]) -> Table:
    each = [
        {**row, "cost": cost, "composed": row["composed"][key], "whole": row["whole"][key]}
        for row in rows
        for cost, key in COSTS.items()
    ]
    columns = {"method": "method", "T": "seq", "": "cost", "composed": "composed", "whole step": "whole"}
    return Table.of("Composed and whole", each, columns, labels=3)


def _targets(document: Document) -> Table:
    return targets_table(row for row in document["targets"] if row["measured"] is not None)


MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}


def _rows(document: Document, kind: str, **having: str) -> list[Row]:
    return [row for row in document[kind] if having.items() <= row.items()]


FIGURES = {
    "mpc-lengths": charts(
        partial(_rows, kind="runs", protocol="aby3"),
        "a token's cost, 3 parties",
        *(
            Panel("seq", key, "method", title, log="xy", labels={"xlabel": "tokens in the sequence"})
            for key, title in MEASURES.items()
        ),
        grid=(2, 2),
    ),
    "mpc-operators": charts(
        partial(_rows, kind="operators", program="step"),
        "a token's operators, T = {seq}",
        *(Panel("method", key, "operator", MEASURES[key], "stacked") for key in ("megabytes", "messages")),
        grid=(1, 2),
    ),
}
