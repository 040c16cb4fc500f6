"""What keeping computed prompts costs where there is nothing to find: two servers take turns at the same requests, one
that keeps nothing and one that does. While one answers the other is stopped.

Throughput is what a user sees, and swings with the machine; processor time of all the server's processes swings less.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from cloister_bench.sharing.deployment import Served
from cloister_bench.sharing.replay import replay
from cloister_bench.sharing.workloads import Scale, pii
from cloister_bench.suite.documents import Document

OFF, ON = "none", "partition"
_SESSION, _USER, _SYSTEM = 3, 11, 12
"""In /proc/PID/stat, counted from the field after the name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """One server in one round."""

    tokens_per_s: float
    processor_ms: float
    """For each request."""
    found: int


@dataclass(frozen=True, slots=True)
class Round:
    off: Cost
    on: Cost


def compared(rounds: Sequence[Round]) -> Document:
    """On over off: the median of the rounds' ratios, the least and the greatest."""
    ratios = {
        "throughput": [one.on.tokens_per_s / one.off.tokens_per_s for one in rounds if one.off.tokens_per_s],
        "processor": [one.on.processor_ms / one.off.processor_ms for one in rounds if one.off.processor_ms],
    }
    found = {"found": sum(one.on.found for one in rounds), "rounds": len(rounds)}
    return {name: _spread(each) for name, each in ratios.items() if each} | found


def _spread(ratios: Sequence[float]) -> Document:
    return {"median": round(median(ratios), 4), "low": round(min(ratios), 4), "high": round(max(ratios), 4)}


def take_turns(
    off: Served,
    on: Served,
    tenants: Sequence[str],
    scale: Scale,
    seed: int,
    rounds: int,
    on_round: Callable[[Round], None],
) -> None:
    """After a round that does not count. Who begins changes from round to round."""
    on.pause()
    current = off
    for number in range(rounds + 1):
        costs: dict[str, Cost] = {}
        for server in (off, on) if number % 2 else (on, off):
            if server is not current:
                current.pause()
                server.resume()
                current = server
            workload = pii(scale, random.Random(f"{seed} {number}"), None)
            before = processor_seconds(server.session)
            served = asyncio.run(replay(server.address, tenants, server.model, server.level, workload))
            spent = processor_seconds(server.session) - before
            costs[server.policy] = Cost(served.tokens_per_s, 1000 * spent / max(1, served.requests), served.found)
        if number:
            on_round(Round(costs[off.policy], costs[on.policy]))
    current.pause()
    for server in (off, on):
        server.resume()


def processor_seconds(session: int) -> float:
    """What all living processes of a session have used so far."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[_SESSION]) == session:
                ticks += int(fields[_USER]) + int(fields[_SYSTEM])
    return ticks / os.sysconf("SC_CLK_TCK")
