"""A measurement made up: runs of known numbers, and a document as a whole measurement would leave it."""

from __future__ import annotations

from typing import Any

from cloister_bench.report import Percentiles, RunReport
from cloister_bench.spd.plan import Plan
from cloister_bench.spd.random_model import SIZES
from cloister_bench.spd.results import Results, breakdown_entry
from cloister_bench.suite.measurement import Measured, Point

PLAN = Plan(users=(1, 8, 32), rounds=2, isolated_users=8, lengths=((64, 64), (512, 64), (64, 512)))
TINY = {
    **SIZES,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
}
SLOWDOWN = {"open": 1.0, "partitioned": 0.9, "isolated": 0.2}


def run(users: int, tokens_per_s: float, answer_ms: float | None = 100.0) -> RunReport:
    middle = Percentiles(answer_ms, answer_ms, answer_ms)
    return RunReport(users, tokens_per_s, middle, middle, 0, requests=users, output_tokens=64 * users, answer_ms=middle)


def measured(points: list[Point]) -> Measured:
    """Each round is slower than the one before, for everyone alike."""
    found = Measured()
    for point in points:
        for round in range(point.rounds):
            rate = 100.0 * point.users * SLOWDOWN[point.level] / (1 + round)
            found.add(point, round, run(point.users, rate, 1000.0 / SLOWDOWN[point.level]))
    return found


def results(plan: Plan = PLAN) -> Results:
    made = Results(plan, "small")
    made.measured["users"] = ("small", measured(plan.points("users")))
    made.measured["lengths"] = ("small", measured(plan.points("lengths")))
    made.measured["model"] = ("large", measured(plan.points("model")))
    seconds = {"query": 1.0, "key_value": 0.5, "output_attention": 0.25, "waiting": 0.25, "merge": 0.1, "rest": 2.0}
    for users in (8, 32):
        made.breakdown[str(users)] = breakdown_entry({**seconds, "step": 5.0}, 100, run(users, 1), run(users, 1))
    made.ttft = {"input_tokens": 512, "open_ms": 200.0, "partitioned_ms": 230.0, "ratio": 1.15}
    made.vaults = {"with_spare_ms": 0.0, "without_spare_ms": 60.0}
    made.memory = {"beyond_kv_mb": 30.0, "idle_vaults": 64, "idle_vaults_mb": 2500.0, "reason": None}
    return made


def document() -> dict[str, Any]:
    return results().document()
