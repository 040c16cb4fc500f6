"""The document of `bench sharing`: what each policy finds, with targets, tables and a figure. Measures nothing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from cloister_bench.sharing.workloads import WORKLOADS, Scale
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table, value_of


@dataclass(frozen=True, slots=True)
class Plan:
    """`blocks`: of the pool, 16 tokens each. `texts`: where they are from."""

    policies: tuple[str, ...]
    workloads: tuple[str, ...]
    tenants: tuple[int, ...]
    rounds: int
    seed: int
    blocks: int
    texts: str
    scale: Scale = field(default_factory=Scale)


def _gain(policy: str, tenants: int, workload: str) -> Callable[[Document], float | None]:
    return value_of("offline", "gain", policy=policy, workload=workload, tenants=tenants)


TARGETS = tuple(
    Target(f"gain of {policy}, {tenants} tenants, {workload}", least, _gain(policy, tenants, workload))
    for policy, tenants, least in (("counted+registered", 24, 0.75), ("counted", 200, 0.5))
    for workload in ("first-chats", "chat")
)
LEAST_GAIN = 0.005
Where = tuple[str, int]  # workload and tenants


@dataclass
class Results(documents.Results):
    """`found`: by workload, tenants and policy, each round's tokens found; `tokens`: each round's prompt tokens."""

    plan: Plan
    tokens: dict[Where, list[int]] = field(default_factory=dict)
    found: dict[tuple[Where, str], list[int]] = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        return {"offline": [self._row(where, policy) for where, policy in self.found]}

    def _shares(self, where: Where, policy: str) -> list[float]:
        return [one / all for one, all in zip(self.found.get((where, policy), ()), self.tokens[where], strict=False)]

    def _row(self, where: Where, policy: str) -> Row:
        """`gain`: (found - partition) / (global - partition), of the rounds' means; `gains`: the rounds' own."""
        every = [self._shares(where, one) for one in (policy, "partition", "global")]
        return {
            "workload": where[0],
            "tenants": where[1],
            "policy": policy,
            "share": round(fmean(every[0]), 4),
            "shares": [round(one, 4) for one in every[0]],
            "gain": _ratio(*map(fmean, every)) if all(every) else None,
            "gains": [_ratio(*shares) for shares in zip(*every, strict=False)],
        }


def _ratio(share: float, own: float, every: float) -> float | None:
    """None where a cache for all finds hardly more than one for each tenant: there is no gain to divide by."""
    return round((share - own) / (every - own), 4) if every - own > LEAST_GAIN else None


def tables(document: Document) -> list[Table]:
    tenants, made = document["plan"]["tenants"], []
    for workload in document["plan"]["workloads"]:
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
    rows = [row for row in document["offline"] if row["policy"] in document["plan"]["policies"]]
    return [{**row, "tenants": f"{row['tenants']} tenants"} for row in rows]


FIGURES = {
    "sharing-workloads": charts(
        _found,
        "share of prompt tokens that each policy finds on natural traffic",
        *(Panel("tenants", "share", "policy", name, "bars", where={"workload": name}) for name in WORKLOADS),
        grid=(1, 2),
    )
}
