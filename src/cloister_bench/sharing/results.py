"""The document of `bench sharing`, its targets, tables and figures. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from cloister_bench.sharing.adaptive import MOST_HITS, Extension
from cloister_bench.sharing.attack import Guess, Probe
from cloister_bench.sharing.replay import Served
from cloister_bench.sharing.workloads import Scale
from cloister_bench.suite import documents
from cloister_bench.suite.documents import (
    Cell,
    Document,
    Drawing,
    Row,
    Table,
    Target,
    grouped_bars,
    rate_cell,
    rate_of,
    targets_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials`: secrets for the attacker that lists candidates; `extensions`: for the adaptive one, of `parts` each."""

    trials: int = 50
    candidates: int = 4
    seed: int = 1
    policies: tuple[str, ...] = ("none", "partition", "safekv", "global")
    extensions: int = 20
    parts: int = 3
    identities: int = 3
    flood: int = 6
    workloads: tuple[str, ...] = ()
    rounds: int = 1
    scale: Scale = field(default_factory=Scale)


Found = Callable[[Document], float | None]


def _rate(part: str, policy: str, by: str, key: str = "advantage") -> Found:
    return lambda document: document[part].get(policy, {}).get(by, {}).get(key)


def _hits(document: Document) -> float | None:
    known = [hits for hits in (document["exposure"].get("safekv") or {}).values() if hits is not None]
    return max(known) if known else None


def _ratio(workload: str, ours: str, theirs: str, of: str) -> Found:
    def found(document: Document) -> float | None:
        rows = document["workloads"].get(workload, {})
        one, other = rows.get(ours, {}).get(of), rows.get(theirs, {}).get(of)
        return None if one is None or not other else float(one / other)

    return found


ATTACK_TARGETS = (
    Target("attack by time under global, share right", 0.8, _rate("attack", "global", "by time", "share")),
    Target("attack by time under safekv, above guessing", 0.01, _rate("attack", "safekv", "by time"), "at most"),
    Target("attack by count under safekv, above guessing", 0.01, _rate("attack", "safekv", "by count"), "at most"),
    Target("adaptive attack under global, share of parts", 0.8, _rate("adaptive", "global", "parts", "share")),
    Target("adaptive attack under safekv, above guessing", 0.01, _rate("adaptive", "safekv", "parts"), "at most"),
    Target("hits by other tenants before demotion", 24, _hits, "at most"),
)


WORKLOAD_TARGETS = (
    Target("first token of safekv over global, chat", 1.05, _ratio("chat", "safekv", "global", "mean_ms"), "at most"),
    Target(
        "throughput of safekv over partition, long system prompt",
        2.0,
        _ratio("system-prompt", "safekv", "partition", "tokens_per_s"),
    ),
    Target(
        "throughput of partition over none, nothing to find", 0.99, _ratio("pii", "partition", "none", "tokens_per_s")
    ),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    guesses: dict[str, Sequence[Guess]] = field(default_factory=dict)
    reused: dict[str, tuple[Probe, Probe]] = field(default_factory=dict)
    extended: dict[str, Sequence[Extension]] = field(default_factory=dict)
    exposed: dict[str, dict[int, int | None]] = field(default_factory=dict)
    """By policy and number of identities: how often other tenants found something before its demotion."""
    served: dict[str, dict[str, list[Served]]] = field(default_factory=dict)  # By workload and policy: its rounds.

    @property
    def targets(self) -> tuple[Target, ...]:  # type: ignore[override]
        return WORKLOAD_TARGETS if self.plan.workloads else ATTACK_TARGETS

    def numbers(self) -> Document:
        return {
            "guessing": 1 / self.plan.candidates,
            "attack": {
                policy: {
                    "by time": self._rate([guess.by_time for guess in guesses]),
                    "by count": self._rate([guess.by_count for guess in guesses]),
                }
                for policy, guesses in self.guesses.items()
                if guesses
            },
            "adaptive": {policy: self._extension(found) for policy, found in self.extended.items() if found},
            "exposure": {
                policy: {str(identities): hits for identities, hits in counts.items()}
                for policy, counts in self.exposed.items()
            },
            "reuse": {
                policy: {
                    "tokens": then.tokens,
                    "found": then.cached,
                    "first_ms": round(1000 * first.seconds, 1),
                    "second_ms": round(1000 * then.seconds, 1),
                }
                for policy, (first, then) in self.reused.items()
            },
            "workloads": {
                workload: {policy: _median(rounds) for policy, rounds in by_policy.items()}
                for workload, by_policy in self.served.items()
            },
        }

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}

    def _rate(self, right: Sequence[bool]) -> Document:
        return _above(sum(right), len(right), 1 / self.plan.candidates)

    def _extension(self, found: Sequence[Extension]) -> Document:
        """By parts that were reached, and by whole secrets; what a blind attacker got of the same parts beside it."""
        reached, right = sum(one.reached for one in found), sum(one.right for one in found)
        blind = _above(sum(one.blind for one in found), reached, 1 / self.plan.candidates)
        parts = _above(right, reached, 1 / self.plan.candidates)
        whole = _above(sum(one.whole for one in found), len(found), self.plan.candidates**-self.plan.parts)
        return {"parts": parts, "blind": blind, "whole": whole}


def _above(right: int, of: int, guessing: float) -> Document:
    return {**rate_of(right, of), "advantage": round(right / max(1, of) - guessing, 6)}


def _median(rounds: Sequence[Served]) -> Document:
    """Of each number; errors and requests are those of all rounds."""
    rows = [asdict(one) for one in rounds]
    result: Document = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows if row[name] is not None]
        result[name] = None if not values else sum(values) if name in ("errors", "requests") else median(values)
    return result


def tables(document: Document) -> list[Table]:
    every = [
        Table.of(
            f"Secrets found (guessing: {document['guessing']:.2f})",
            _by_policy(document["attack"]),
            {"policy": "policy", **{by: _rate_cell(by) for by in ("by time", "by count")}},
        ),
        Table.of(
            "Secrets found part by part, by several identities",
            _by_policy(document["adaptive"]),
            {
                "policy": "policy",
                **{by: _rate_cell(by) for by in ("parts", "blind", "whole")},
                "hits till demoted": lambda row: _exposed(document, row["policy"]),
            },
        ),
        Table.of(
            "A clean prompt, asked by one tenant and then by another",
            _by_policy(document["reuse"]),
            {
                "policy": "policy",
                "tokens": "tokens",
                "found": "found",
                "first, ms": "first_ms",
                "then, ms": "second_ms",
            },
        ),
        *(Table.of(f"Workload {name}", _by_policy(rows), SERVED) for name, rows in document["workloads"].items()),
    ]
    return [*(table for table in every if table.rows), targets_table(document["targets"])]


SERVED: dict[str, str | Cell] = {
    "policy": "policy",
    "requests": "requests",
    "errors": "errors",
    "TTFT mean, ms": "mean_ms",
    "p95": "p95_ms",
    "p99": "p99_ms",
    "tokens/s": "tokens_per_s",
    "found, %": lambda row: 100 * row["found"] / max(1, row["prompt_tokens"]),
}


def _by_policy(rows: dict[str, Any]) -> list[Row]:
    return [{"policy": policy, **row} for policy, row in rows.items()]


def _rate_cell(by: str) -> Cell:
    return lambda row: rate_cell(row[by])


def _exposed(document: Document, policy: str) -> str:
    counts = document["exposure"].get(policy, {}).values()
    return ", ".join("-" if hits is None else f"{hits}{'+' * (hits >= MOST_HITS)}" for hits in counts)


def _bars(panel: Axes, rates: dict[str, Document], names: dict[str, str]) -> None:
    ways = {label: [of_policy[by] for of_policy in rates.values()] for by, label in names.items()}
    errors = {
        label: [
            [max(0.0, one["share"] - one["low"]) for one in found],
            [max(0.0, one["high"] - one["share"]) for one in found],
        ]
        for label, found in ways.items()
    }
    grouped_bars(panel, list(rates), {label: [one["share"] for one in found] for label, found in ways.items()}, errors)
    panel.set(ylim=(0, 1.05))


def draw_attack(document: Document, axes: tuple[Axes, ...]) -> str:
    """SafeKV Figure 6."""
    _bars(axes[0], document["attack"], {"by time": "by time", "by count": "by count"})
    axes[0].axhline(document["guessing"], color="gray", linestyle=":", label="guessing")
    axes[0].set(ylabel="share of secrets found")
    axes[0].legend(fontsize="small")
    return "an attacker that lists candidates"


def draw_adaptive(document: Document, axes: tuple[Axes, ...]) -> str:
    _bars(axes[0], document["adaptive"], {"parts": "adaptive", "blind": "blind"})
    axes[0].set(ylabel="share of a secret's parts found")
    axes[0].legend(fontsize="small")
    return "an attacker that goes on part by part"


def draw_workloads(document: Document, axes: tuple[Axes, ...]) -> str:
    """Figures 11 and 12."""
    workloads = document["workloads"]
    policies = list(dict.fromkeys(policy for rows in workloads.values() for policy in rows))

    def values(key: str) -> dict[str, list[float]]:
        return {policy: [rows.get(policy, {}).get(key) or 0.0 for rows in workloads.values()] for policy in policies}

    first, late = values("mean_ms"), values("p95_ms")
    reach = {
        policy: [
            [0.0] * len(workloads),
            [max(0.0, p95 - mean) for mean, p95 in zip(first[policy], late[policy], strict=True)],
        ]
        for policy in policies
    }
    grouped_bars(axes[0], list(workloads), first, reach)
    grouped_bars(axes[1], list(workloads), values("tokens_per_s"))
    axes[0].set(title="first token, ms (mean, line to p95)", ylim=(0, None))
    axes[1].set(title="tokens/s", ylim=(0, None))
    axes[1].legend(fontsize="small")
    return "policies of sharing"


def _if_any(part: str) -> Callable[[Document], Document | None]:
    return lambda document: document if document[part] else None


FIGURES = {
    "sharing-attack": Drawing(_if_any("attack"), draw_attack),
    "sharing-adaptive": Drawing(_if_any("adaptive"), draw_adaptive),
    "sharing-workloads": Drawing(_if_any("workloads"), draw_workloads, (1, 2)),
}
