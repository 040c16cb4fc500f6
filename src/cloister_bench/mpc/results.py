"""The document of `bench mpc`. Megabytes are 10⁶ bytes of all parties together; messages one party's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from cloister_bench.mpc.cost import LAN, WAN, Cost
from cloister_bench.mpc.plan import Plan
from cloister_bench.mpc.quality import QualityRow
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table

LEAST = {"megabytes": 5.0, "messages": 1.5, "lan_seconds": 2.0}
LENGTHS = (1024, 2048)
BUDGET = 0.1
LOWER_IS_BETTER = ("wikitext2", "novel")  # perplexities


def _saving(document: Document, seq: int, key: str) -> float | None:
    full, ours = (find(document["runs"], method=name, seq=seq) for name in ("full", "mpcache"))
    return round(full[key] / ours[key], 3) if full and ours and ours[key] else None


def _quality_kept(document: Document) -> float | None:
    """MPCache at the budget of the target: the mean over tasks of what is kept of the full cache's score."""
    shares = [
        row["full_score"] / row["score"] if row["task"] in LOWER_IS_BETTER else row["score"] / row["full_score"]
        for row in document["quality"]
        if row["method"] == "mpcache" and row["budget"] == BUDGET and row["score"] and row["full_score"]
    ]
    return round(sum(shares) / len(shares), 4) if shares else None


TARGETS = (
    *(
        Target(f"{key}, full over mpcache, T = {seq}", least, partial(_saving, seq=seq, key=key))
        for seq in LENGTHS
        for key, least in LEAST.items()
    ),
    Target(f"quality kept at {BUDGET:.0%} of the cache", 0.98, _quality_kept),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    runs: list[Row] = field(default_factory=list)
    quality: list[Row] = field(default_factory=list)
    targets = TARGETS

    def add_run(self, method: str, seq: int, cost: Cost) -> None:
        measured = {
            "seconds": cost.seconds,
            "megabytes": cost.bytes / 1e6,
            "messages": cost.messages,
            "lan_seconds": cost.on(LAN),
            "wan_seconds": cost.on(WAN),
            "cpu_seconds": cost.cpu,
            "lan_cpu_seconds": cost._replace(seconds=cost.cpu).on(LAN),
        }
        rounded = {key: round(value, 4) for key, value in measured.items()}
        self.runs.append({"method": method, "protocol": "aby3", "seq": seq, **rounded})

    def add_quality(self, rows: Sequence[QualityRow]) -> None:
        self.quality += [row._asdict() for row in rows]

    def numbers(self) -> Document:
        return {"runs": list(self.runs), "quality": list(self.quality)}

    def remarks(self) -> Document:
        return {"taken_s": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    costs = {"MB": "megabytes", "messages": "messages", "processor s": "cpu_seconds", "s here": "seconds"}
    networks = {"s, LAN": "lan_seconds", "s, WAN": "wan_seconds"}
    runs = sorted(document["runs"], key=lambda run: run["seq"])
    judged = {"task": "task", "method": "method", "budget": "budget", "score": "score", "full cache": "full_score"}
    return [
        Table.of("A token's cost (Figure 10)", runs, {"T": "seq", "": "method", **costs, **networks}, labels=2),
        Table.of("Quality in plaintext", document["quality"], judged, labels=2),
        targets_table(row for row in document["targets"] if row["measured"] is not None),
    ]


MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}
FIGURES = {
    "mpc-lengths": charts(
        lambda document: [row for row in document["runs"] if row["protocol"] == "aby3"],
        "a token's cost, 3 parties",
        *(
            Panel("seq", key, "method", title, log="xy", labels={"xlabel": "tokens in the sequence"})
            for key, title in MEASURES.items()
        ),
        grid=(2, 2),
    )
}
