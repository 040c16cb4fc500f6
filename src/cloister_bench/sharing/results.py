"""The document of `bench sharing`: what each policy finds, with targets, tables and a figure, beside SafeKV's Tables II
and III. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from cloister_bench.sharing.workloads import Scale
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Drawing, Row, Table, Target, find, grouped_bars, targets_table
from cloister_bench.words import read_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


def _gain(policy: str, workload: str, tenants: int, document: Document) -> float | None:
    row = find(document["offline"], policy=policy, workload=workload, tenants=tenants)
    return row["gain"] if row else None


def _slowest(policy: str, document: Document) -> float | None:
    known = (row["over_global"] for row in document["http"] if row["policy"] == policy)
    return max((one for one in known if one is not None), default=None)


def _targets(policy: str, tenants: int, gain: float) -> list[Target]:
    first = Target(f"first token of {policy} over global, where shared", 1.05, partial(_slowest, policy), "at most")
    gains = [
        Target(f"gain of {policy}, {tenants} tenants, {workload}", gain, partial(_gain, policy, workload, tenants))
        for workload in ("first-chats", "chat")
    ]
    return [*gains, first]


QUOTED = read_words("traffic")
Where = tuple[str, int]  # workload and tenants


@dataclass
class Results(documents.Results):
    """`found`: by workload, tenants and policy, each round's tokens found; `tokens`: each round's prompt tokens."""

    plan: Plan
    tokens: dict[Where, list[int]] = field(default_factory=dict)
    found: dict[tuple[Where, str], list[int]] = field(default_factory=dict)
    findings: Mapping[str, int] = field(default_factory=dict)
    http: list[Row] = field(default_factory=list)
    targets = (*_targets("counted+registered", 24, 0.75), *_targets("counted", 200, 0.5))

    def numbers(self) -> Document:
        seen = [
            {"kind": kind, "c4": c4, "pile": pile, "ours": sum(self.findings.get(name, 0) for name in names)}
            for kind, (c4, pile, names) in QUOTED["SAFEKV_TABLE_2"].items()
        ]
        reuse = {f"SafeKV: {name}": both for name, both in QUOTED["SAFEKV_TABLE_3"].items()}
        for where in self.tokens:
            own, every = (self._shares(where, policy) for policy in ("partition", "global"))
            if own and every:
                reuse[f"{where[0]}, {where[1]} tenants"] = fmean(own), fmean(every) - fmean(own)
        return {
            "offline": [self._row(where, policy) for where, policy in self.found],
            "http": self.http,
            "table_2": seen,
            "table_3": [
                {"set": name, "own": round(own, 4), "others": round(of, 4)} for name, (own, of) in reuse.items()
            ],
        }

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}

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
    return round((share - own) / (every - own), 4) if every > own else None


_FIRST = ("mean_ms", "p50_ms", "p95_ms")
_SENT = ("policy", "workload", "tenants", "errors", *_FIRST, "shared", *(f"shared_{one}" for one in _FIRST))
_SENT += ("over_global", "tokens_per_s", "share")


def tables(document: Document) -> list[Table]:
    tenants, made = document["plan"]["tenants"], []
    for workload in document["plan"]["workloads"]:
        rows = [row for row in document["offline"] if row["workload"] == workload]
        policies = dict.fromkeys(row["policy"] for row in rows)
        cells = [[one, *(_cell(find(rows, policy=one, tenants=count)) for count in tenants)] for one in policies]
        heads = ["policy", *(f"{count} tenants" for count in tenants)]
        made.append(Table(f"{workload}: share of prompt tokens found (gain)", heads, cells))
    made.append(Table.of("Over HTTP", document["http"], {one.replace("_", " "): one for one in _SENT}, labels=2))
    kinds = {"Table II": "kind", "C4": "c4", "Pile": "pile", "our prompts": "ours"}
    made.append(Table.of("Looks private: in corpora (SafeKV), in our prompts", document["table_2"], kinds))
    reuse = {"Table III": "set", "own": "own", "of others": "others"}
    made.append(Table.of("Prompt tokens that a cache for all finds", document["table_3"], reuse))
    return [*(table for table in made if table.rows), targets_table(document["targets"])]


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    return f"{row['share']:.3f}" + ("" if row["gain"] is None else f" ({row['gain']:.2f})")


def draw_workloads(document: Document, axes: Sequence[Axes]) -> str:
    plan, rows = document["plan"], document["offline"]
    for panel, workload in zip(axes, plan["workloads"], strict=False):
        found = {
            policy: [row["share"] for row in rows if (row["workload"], row["policy"]) == (workload, policy)]
            for policy in plan["policies"]
        }
        grouped_bars(panel, [f"{count} tenants" for count in plan["tenants"]], found)
        panel.set(title=workload, ylim=(0, None), ylabel="share of prompt tokens found")
    axes[0].legend(fontsize="x-small")
    return "what each policy finds on natural traffic"


FIGURES = {"sharing-workloads": Drawing(lambda document: document["offline"] and document, draw_workloads, (2, 2))}
