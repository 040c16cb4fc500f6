"""The document of `bench sharing`, its targets and its tables. Measures nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cloister.bench.sharing.attack import Guess, Probe
from cloister.bench.suite import documents
from cloister.bench.suite.documents import Document, Table, Target, number, targets_table
from cloister.bench.suite.intervals import wilson


@dataclass(frozen=True, slots=True)
class Plan:
    trials: int = 50
    candidates: int = 4
    seed: int = 1
    policies: tuple[str, ...] = ("none", "partition", "safekv", "global")


def _advantage(policy: str, by: str) -> Any:
    def found(document: Document) -> float | None:
        rates = document["attack"].get(policy)
        return None if rates is None else float(rates[by]["advantage"])

    return found


def _share(document: Document) -> float | None:
    rates = document["attack"].get("global")
    return None if rates is None else float(rates["by time"]["share"])


TARGETS = (
    Target("attack by time under global, share right", 0.8, _share),
    Target("attack by time under safekv, above guessing", 0.01, _advantage("safekv", "by time"), "at most"),
    Target("attack by count under safekv, above guessing", 0.01, _advantage("safekv", "by count"), "at most"),
)


@dataclass
class Results(documents.Results):
    plan: Plan
    guesses: dict[str, Sequence[Guess]] = field(default_factory=dict)
    reused: dict[str, tuple[Probe, Probe]] = field(default_factory=dict)
    targets = TARGETS

    def numbers(self) -> Document:
        return {
            "guessing": 1 / self.plan.candidates,
            "attack": {
                policy: {
                    "by time": self._rate([guess.by_time for guess in guesses]),
                    "by count": self._rate([guess.by_count for guess in guesses]),
                }
                for policy, guesses in self.guesses.items()
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
        }

    def remarks(self) -> Document:
        return {"seconds": round(self.seconds, 1)}

    def _rate(self, right: Sequence[bool]) -> Document:
        low, high = wilson(sum(right), len(right))
        share = sum(right) / max(1, len(right))
        advantage = share - 1 / self.plan.candidates
        return {"share": share, "low": low, "high": high, "of": len(right), "advantage": advantage}


def tables(document: Document) -> list[Table]:
    attack = [
        [policy, *(f"{one['share']:.2f} ({one['low']:.2f}–{one['high']:.2f})" for one in rates.values())]
        for policy, rates in document["attack"].items()
    ]
    reuse = [
        [policy, *(number(row[key]) for key in ("tokens", "found", "first_ms", "second_ms"))]
        for policy, row in document["reuse"].items()
    ]
    return [
        Table(f"Secrets found (guessing: {document['guessing']:.2f})", ("policy", "by time", "by count"), attack),
        Table(
            "A clean prompt, asked by one tenant and then by another",
            ("policy", "tokens", "found", "first, ms", "then, ms"),
            reuse,
        ),
        targets_table(document["targets"]),
    ]
