"""Measurements nobody made, for the tests of what is done with them."""

from __future__ import annotations

from cloister_bench.mpc.cost import Cost
from cloister_bench.mpc.steps import Plan, Results


def cost(megabytes: float = 1.0, messages: int = 100, seconds: float = 1.0) -> Cost:
    """Sent in equal parts."""
    return Cost(seconds, megabytes * 1e6, megabytes * 1e6 / 3, messages, seconds / 2)


def results() -> Results:
    """Two lengths of three ways."""
    found = Results(Plan(), "small")
    for seq in (1024, 2048):
        found.add_run("full_library", seq, cost(megabytes=400.0, messages=16_000, seconds=9.0))
        found.add_run("full", seq, cost(megabytes=300.0, messages=12_000, seconds=8.0))
        found.add_run("mpcache", seq, cost(megabytes=50.0, messages=3_000, seconds=4.0))
    return found
