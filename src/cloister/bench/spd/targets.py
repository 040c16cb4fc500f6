"""What we set ourselves, and whether it was met: looked up in the document of a measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on one number of the document."""

    name: str
    bound: Literal["at least", "at most"]
    target: float
    measured: Callable[[Document], float | None]

    def verdict(self, document: Document) -> dict[str, Any]:
        """Its row; what was not measured was not met, and says so."""
        value = self.measured(document)
        met = value is not None and (value >= self.target if self.bound == "at least" else value <= self.target)
        row = {"name": self.name, "bound": self.bound, "target": self.target, "measured": value, "met": met}
        return row if value is not None else {**row, "reason": "not measured"}


def targets_of(document: Document) -> list[dict[str, Any]]:
    """All of them, in one order."""
    return [target.verdict(document) for target in TARGETS]


def _ratio(users: int, key: str) -> Callable[[Document], float | None]:
    def find(document: Document) -> float | None:
        for run in document["runs"]:
            if (run["figure"], run["level"], run["users"]) == (4, "partitioned", users):
                value: float | None = run[key]
                return value
        return None

    return find


def _number(part: str, key: str) -> Callable[[Document], float | None]:
    return lambda document: document[part].get(key)


def _idle_vaults(document: Document) -> float | None:
    memory = document["memory"]
    value: float | None = memory.get("idle_vaults_mb")
    return value if memory.get("idle_vaults") == IDLE_VAULTS else None


IDLE_VAULTS = 64
TARGETS = (
    Target("throughput of partitioned over open, 8 users", "at least", 0.85, _ratio(8, "ratio_to_open")),
    Target("throughput of partitioned over open, 32 users", "at least", 0.8, _ratio(32, "ratio_to_open")),
    Target("throughput of partitioned over isolated, 8 users", "at least", 3.0, _ratio(8, "ratio_to_isolated")),
    Target("first token of a long prompt, partitioned over open", "at most", 1.2, _number("ttft", "ratio")),
    Target("a vault's private memory beyond its KV cache, MB", "at most", 40.0, _number("memory", "beyond_kv_mb")),
    Target("a new user's wait for a vault, spare one ready, ms", "at most", 50.0, _number("vaults", "with_spare_ms")),
    Target("a new user's wait for a vault, none spare, ms", "at most", 50.0, _number("vaults", "without_spare_ms")),
    Target(f"{IDLE_VAULTS} idle vaults, MB", "at most", 3000.0, _idle_vaults),
)
