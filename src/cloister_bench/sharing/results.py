"""The document of `bench sharing`: what each policy finds, with targets, tables and a figure. Measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from cloister_bench.sharing.workloads import WORKLOADS
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table, value_of


@dataclass(frozen=True, slots=True)
class Plan:
    """`texts`: where they are from."""

    tenants: tuple[int, ...]
    rounds: int
    seed: int
    texts: str
    chats: int


def _gain(policy: str, tenants: int, workload: str) -> Callable[[Document], float | None]:
    return value_of("offline", "gain", policy=policy, workload=workload, tenants=tenants)


TARGETS = tuple(
    Target(f"gain of {policy}, {tenants} tenants, {workload}", least, _gain(policy, tenants, workload))
    for policy, tenants, least in (("counted+registered", 24, 0.75), ("counted", 200, 0.5))
    for workload in ("first-chats", "chat")
)
LEAST_GAIN = 0.005  # of `global` over `partition`: with less there is no gain to divide by
Where = tuple[str, int]  # workload and tenants


@dataclass
class Results(documents.Results):
    """`found`: tokens by workload, tenants and policy; `tokens`: of all prompts."""

    plan: Plan
    tokens: Counter[Where] = field(default_factory=Counter)
    found: Counter[tuple[Where, str]] = field(default_factory=Counter)
    targets = TARGETS

    def numbers(self) -> Document:
        return {"offline": [self._row(where, policy) for where, policy in self.found]}

    def _row(self, where: Where, policy: str) -> Row:
        """`gain`: (found - partition) / (global - partition)."""
        found, own, every = (self.found[where, one] for one in (policy, "partition", "global"))
        gain = round((found - own) / (every - own), 4) if every - own > LEAST_GAIN * self.tokens[where] else None
        share = round(found / self.tokens[where], 4)
        return {"workload": where[0], "tenants": where[1], "policy": policy, "share": share, "gain": gain}


def tables(document: Document) -> list[Table]:
    tenants, made = document["plan"]["tenants"], []
    for workload in WORKLOADS:
        rows = [row for row in document["offline"] if row["workload"] == workload]
        policies = dict.fromkeys(row["policy"] for row in rows)
        cells = [[one, *(_cell(find(rows, policy=one, tenants=count)) for count in tenants)] for one in policies]
        heads = ["policy", *(f"{count} tenants" for count in tenants)]
        made.append(Table(f"{workload}: share of prompt tokens found (gain)", heads, cells))
    return [*(table for table in made if table.rows), targets_table(document["targets"])]


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row['share']:.3f}" + ("" if row["gain"] is None else f" ({row['gain']:.2f})")


def _found(document: Document) -> list[Row]:
    return [{**row, "tenants": f"{row['tenants']} tenants"} for row in document["offline"]]


FIGURES = {
    "sharing-workloads": charts(
        _found,
        "share of prompt tokens that each policy finds on natural traffic",
        *(Panel("tenants", "share", "policy", name, "bars", where={"workload": name}) for name in WORKLOADS),
        grid=(1, 2),
    )
}
