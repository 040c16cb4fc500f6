"""The targets of `bench spd`: what we set ourselves for vaults."""

from __future__ import annotations

from collections.abc import Callable

from cloister.bench.suite.results import Document, Target, find
from cloister.levels import PARTITIONED

IDLE_VAULTS = 64


def _ratio(users: int, key: str) -> Callable[[Document], float | None]:
    return lambda document: (find(document["runs"], figure=4, level=PARTITIONED, users=users) or {}).get(key)


def _number(part: str, key: str) -> Callable[[Document], float | None]:
    return lambda document: document[part].get(key)


def _idle_vaults(document: Document) -> float | None:
    memory = document["memory"]
    value: float | None = memory.get("idle_vaults_mb")
    return value if memory.get("idle_vaults") == IDLE_VAULTS else None


TARGETS = (
    Target("throughput of partitioned over open, 8 users", 0.85, _ratio(8, "ratio_to_open")),
    Target("throughput of partitioned over open, 32 users", 0.8, _ratio(32, "ratio_to_open")),
    Target("throughput of partitioned over isolated, 8 users", 3.0, _ratio(8, "ratio_to_isolated")),
    Target("first token of a long prompt, partitioned over open", 1.2, _number("ttft", "ratio"), "at most"),
    Target("a vault's private memory beyond its KV cache, MB", 40.0, _number("memory", "beyond_kv_mb"), "at most"),
    Target("a new user's wait for a vault, spare one ready, ms", 50.0, _number("vaults", "with_spare_ms"), "at most"),
    Target("a new user's wait for a vault, none spare, ms", 50.0, _number("vaults", "without_spare_ms"), "at most"),
    Target(f"{IDLE_VAULTS} idle vaults, MB", 3000.0, _idle_vaults, "at most"),
)
