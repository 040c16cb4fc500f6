"""What `bench mpc` measures, and its document. Megabytes are 10⁶ bytes of all parties; messages one party's."""

from dataclasses import dataclass, field

from cloister_bench.mpc.cost import LAN, WAN, Cost
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, charts
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
    repeats: int = 3
    new_tokens: int = 32


@dataclass
class Results(documents.Results):
    plan: Plan
    runs: list[Row] = field(default_factory=list)

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
        self.runs.append({"method": method, "seq": seq, **rounded})

    def numbers(self) -> Document:
        return {"runs": list(self.runs)}


def tables(document: Document) -> list[Table]:
    costs = {"MB": "megabytes", "messages": "messages", "processor s": "cpu_seconds", "s here": "seconds"}
    networks = {"s, LAN": "lan_seconds", "s, WAN": "wan_seconds"}
    columns = {"T": "seq", "": "method", **costs, **networks}
    return [Table.of("A token's cost (Figure 10)", document["runs"], columns, labels=2)]


MEASURES = {
    "megabytes": "megabytes a token",
    "messages": "messages a token",
    "lan_cpu_seconds": "seconds a token, LAN (processor s)",
    "wan_seconds": "seconds a token, WAN",
}
FIGURES = {
    "mpc-lengths": charts(
        lambda document: document["runs"],
        "a token's cost, 3 parties",
        *(
            Panel("seq", key, "method", title, log="xy", labels={"xlabel": "tokens in the sequence"})
            for key, title in MEASURES.items()
        ),
        grid=(2, 2),
    )
}
