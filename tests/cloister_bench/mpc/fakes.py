"""Measurements nobody made, for the tests of what is done with them."""

from __future__ import annotations

from cloister_bench.mpc.cost import Cost, Tally
from cloister_bench.mpc.plan import Plan
from cloister_bench.mpc.results import Results


def cost(megabytes: float = 1.0, messages: int = 100, seconds: float = 1.0, parties: int = 3) -> Cost:
    """Sent in equal parts; two operators."""
    each = round(megabytes * 1e6 / parties)
    whole = Tally(seconds, (each,) * parties, (messages,) * parties, 1)
    half = Tally(seconds / 2, (each // 2,) * parties, (messages // 2,) * parties, 3)
    return Cost(whole, {"dot": half, "less": half})


def results() -> Results:
    """Two lengths of three ways, and their operators."""
    found = Results(Plan(), "small")
    for seq in (1024, 2048):
        found.add_run("full", seq, cost(megabytes=300.0, messages=12_000, seconds=8.0))
        found.add_run("full_lean", seq, cost(megabytes=200.0, messages=4_000, seconds=6.0))
        found.add_run("mpcache", seq, cost(megabytes=50.0, messages=3_000, seconds=4.0))
    found.add_operators("mpcache", "step", 1024, cost())
    return found
