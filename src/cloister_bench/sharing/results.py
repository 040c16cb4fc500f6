"""The document of `bench sharing`: what each policy finds, with targets, tables and a figure, beside SafeKV's Tables II
and III. Measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean

from cloister_bench.sharing.workloads import WORKLOADS, Scale
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Panel, Row, Table, Target, charts, find, targets_table
from cloister_bench.words import read_words


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
LEAST_GAIN = 0.005
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
    """None where a cache for all finds hardly more than one for each tenant: there is no gain to divide by."""
    return round((share - own) / (every - own), 4) if every - own > LEAST_GAIN else None


_FIRST = {"mean, ms": "mean_ms", "p50": "p50_ms", "p95": "p95_ms"}
_SENT = {"policy": "policy", "tenants": "tenants"}


def tables(document: Document) -> list[Table]:
    tenants, made = document["plan"]["tenants"], []
    for workload in document["plan"]["workloads"]:
        rows = [row for row in document["offline"] if row["workload"] == workload]
        policies = dict.fromkeys(row["policy"] for row in rows)
        cells = [[one, *(_cell(find(rows, policy=one, tenants=count)) for count in tenants)] for one in policies]
        heads = ["policy", *(f"{count} tenants" for count in tenants)]
        made.append(Table(f"{workload}: share of prompt tokens found (gain)", heads, cells))
    every = {**_SENT, "failed": "errors", **_FIRST, "tokens/s": "tokens_per_s", "found": "share"}
    shared = {
        **_SENT,
        "requests": "shared",
        **{head: f"shared_{of}" for head, of in _FIRST.items()},
        "/ global": "over_global",
    }
    made.append(Table.of("Over HTTP: first tokens", document["http"], every))
    made.append(Table.of("Over HTTP: first tokens of what is shared", document["http"], shared))
    kinds = {"Table II": "kind", "C4": "c4", "Pile": "pile", "our prompts": "ours"}
    made.append(Table.of("Looks private: in corpora (SafeKV), in our prompts", document["table_2"], kinds))
    reuse = {"Table III": "set", "own": "own", "of others": "others"}
    made.append(Table.of("Prompt tokens that a cache for all finds", document["table_3"], reuse))
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
        grid=(2, 2),
    )
}
