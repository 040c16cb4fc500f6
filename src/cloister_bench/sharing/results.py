"""The document of `bench sharing`, its targets and its tables. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from cloister_bench.sharing.adaptive import MOST_HITS, Extension
from cloister_bench.sharing.attack import Guess, Probe
from cloister_bench.sharing.replay import Served
from cloister_bench.sharing.workloads import Scale
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Table, Target, number, targets_table
from cloister_bench.suite.intervals import wilson


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials` secrets for the attacker that lists candidates, `extensions` for the adaptive one, whose secrets have
    `parts`; `rounds` of every workload."""

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


def _advantage(part: str, policy: str, by: str) -> Found:
    def found(document: Document) -> float | None:
        rates = document[part].get(policy)
        return None if rates is None else float(rates[by]["advantage"])

    return found


def _share(part: str, policy: str, by: str) -> Found:
    def found(document: Document) -> float | None:
        rates = document[part].get(policy)
        return None if rates is None else float(rates[by]["share"])

    return found


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
    Target("attack by time under global, share right", 0.8, _share("attack", "global", "by time")),
    Target("attack by time under safekv, above guessing", 0.01, _advantage("attack", "safekv", "by time"), "at most"),
    Target("attack by count under safekv, above guessing", 0.01, _advantage("attack", "safekv", "by count"), "at most"),
    Target("adaptive attack under global, share of parts", 0.8, _share("adaptive", "global", "parts")),
    Target("adaptive attack under safekv, above guessing", 0.01, _advantage("adaptive", "safekv", "parts"), "at most"),
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
    served: dict[str, dict[str, list[Served]]] = field(default_factory=dict)
    """By workload and policy: its rounds."""

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
            "rounds": {
                workload: {policy: [one.row() for one in rounds] for policy, rounds in by_policy.items()}
                for workload, by_policy in self.served.items()
            },
        }

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}

    def _rate(self, right: Sequence[bool]) -> Document:
        return _interval(sum(right), len(right), 1 / self.plan.candidates)

    def _extension(self, found: Sequence[Extension]) -> Document:
        """By parts that were reached, and by whole secrets; what a blind attacker got of the same parts beside it."""
        reached, right = sum(one.reached for one in found), sum(one.right for one in found)
        blind = _interval(sum(one.blind for one in found), reached, 1 / self.plan.candidates)
        parts = _interval(right, reached, 1 / self.plan.candidates)
        whole = _interval(sum(one.whole for one in found), len(found), self.plan.candidates**-self.plan.parts)
        return {"parts": parts, "blind": blind, "whole": whole}


def _interval(right: int, of: int, guessing: float) -> Document:
    low, high = wilson(right, of)
    share = right / max(1, of)
    return {"share": share, "low": low, "high": high, "of": of, "advantage": round(share - guessing, 6)}


def _median(rounds: Sequence[Served]) -> Document:
    """Of each number; errors and requests are those of all rounds."""
    rows = [one.row() for one in rounds]
    result: Document = {}
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows if row[name] is not None]
        result[name] = None if not values else sum(values) if name in ("errors", "requests") else median(values)
    return result


def tables(document: Document) -> list[Table]:
    made: list[Table] = []
    if document["attack"]:
        made.append(
            Table(
                f"Secrets found (guessing: {document['guessing']:.2f})",
                ("policy", "by time", "by count"),
                [[policy, *map(_shown, rates.values())] for policy, rates in document["attack"].items()],
            )
        )
    if document["adaptive"]:
        rows = [
            [policy, *(_shown(rates[by]) for by in ("parts", "blind", "whole")), _exposed(document, policy)]
            for policy, rates in document["adaptive"].items()
        ]
        heads = ("policy", "parts", "blind", "whole", "hits till demoted")
        made.append(Table("Secrets found part by part, by several identities", heads, rows))
    if document["reuse"]:
        made.append(
            Table(
                "A clean prompt, asked by one tenant and then by another",
                ("policy", "tokens", "found", "first, ms", "then, ms"),
                [
                    [policy, *(number(row[key]) for key in ("tokens", "found", "first_ms", "second_ms"))]
                    for policy, row in document["reuse"].items()
                ],
            )
        )
    for workload, policies in document["workloads"].items():
        made.append(_workload(workload, policies))
    return [*made, targets_table(document["targets"])]


def _workload(name: str, policies: dict[str, Any]) -> Table:
    keys = ("requests", "errors", "mean_ms", "p95_ms", "p99_ms", "tokens_per_s")
    rows = [
        [policy, *(number(row[key]) for key in keys), number(100 * row["found"] / max(1, row["prompt_tokens"]))]
        for policy, row in policies.items()
    ]
    heads = ("policy", "requests", "errors", "TTFT mean, ms", "p95", "p99", "tokens/s", "found, %")
    return Table(f"Workload {name}", heads, rows)


def _shown(rate: Document) -> str:
    return f"{rate['share']:.2f} ({rate['low']:.2f}–{rate['high']:.2f})"


def _exposed(document: Document, policy: str) -> str:
    counts = document["exposure"].get(policy, {}).values()
    return ", ".join("-" if hits is None else f"{hits}{'+' * (hits >= MOST_HITS)}" for hits in counts)
