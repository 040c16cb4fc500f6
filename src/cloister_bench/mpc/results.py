"""What `bench mpc` measures, and its document. Megabytes are 10⁶ bytes of all parties; messages one party's."""

from dataclasses import dataclass, field
from functools import partial

from cloister_bench.mpc.cost import LAN, WAN, Cost
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table
from cloister_mpc.cache.plan import PLANS, CachePlan
from cloister_mpc.functions.bundle import EXACT, LEAN, Functions

VARIANTS: dict[str, tuple[CachePlan, Functions]] = {
    "full_library": (PLANS["full"], EXACT),
    "full": (PLANS["full"], LEAN),
    "mpcache": (PLANS["mpcache"], LEAN),
}
"""The full cache as it is served is what MPCache must beat; the first shows what the library's own functions would
cost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and messages need one run, seconds `repeats`."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048)
    ways: tuple[str, ...] = tuple(VARIANTS)
    repeats: int = 3
    new_tokens: int = 32
    quick: bool = False


FULL = Plan()
QUICK = Plan(lengths=(1024, 256), repeats=1, quick=True)  # to see that all works, and about how it stands

LEAST = {"megabytes": 5.0, "messages": 1.5, "lan_seconds": 2.0}
LENGTHS = (1024, 2048)


def _saving(document: Document, seq: int, key: str) -> float | None:
    full, ours = (find(document["runs"], method=name, seq=seq) for name in ("full", "mpcache"))
    return round(full[key] / ours[key], 3) if full and ours and ours[key] else None


TARGETS = tuple(
    Target(f"{key}, full over mpcache, T = {seq}", least, partial(_saving, seq=seq, key=key))
    for seq in LENGTHS
    for key, least in LEAST.items()
)


@dataclass
class Results(documents.Results):
    plan: Plan
    runs: list[Row] = field(default_factory=list)
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

    def numbers(self) -> Document:
        return {"runs": list(self.runs)}

    def remarks(self) -> Document:
        return {"taken_s": round(self.seconds, 1)}


def tables(document: Document) -> list[Table]:
    costs = {"MB": "megabytes", "messages": "messages", "processor s": "cpu_seconds", "s here": "seconds"}
    networks = {"s, LAN": "lan_seconds", "s, WAN": "wan_seconds"}
    runs = sorted(document["runs"], key=lambda run: run["seq"])
    return [
        Table.of("A token's cost (Figure 10)", runs, {"T": "seq", "": "method", **costs, **networks}, labels=2),
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
