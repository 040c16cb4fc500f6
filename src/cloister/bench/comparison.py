"""Servers side by side: the same load on each in turn, several times over, and the ratio of their throughputs.

Only one server runs at a time; the others are paused. A server may be measured at several levels of protection: each is
a side of its own. Every round has its own seed, the same for all sides, so that nobody answers from a prefix cache. The
figure of a side is the median of its rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from cloister.bench.load import Workload, measure
from cloister.bench.report import RunReport
from cloister.bench.server_process import ServerProcess


@dataclass(frozen=True, slots=True)
class Side:
    """A server, and the level of protection it is asked for; None where it is not asked for any."""

    name: str
    server: ServerProcess
    protection: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rounds of all sides: `rounds[name]` holds one list of runs for each round. The first `own` names are ours."""

    rounds: Mapping[str, list[list[RunReport]]]
    own: int = 1

    def median_runs(self, name: str) -> list[RunReport]:
        """For each number of users the round with the median throughput (the lower one of two)."""
        by_users = zip(*self.rounds[name], strict=True)
        return [sorted(runs, key=lambda run: run.output_tokens_per_s)[(len(runs) - 1) // 2] for runs in by_users]

    def throughput(self, name: str) -> dict[int, float]:
        """Users → median output tokens/s."""
        by_users = zip(*self.rounds[name], strict=True)
        return {runs[0].users: median(run.output_tokens_per_s for run in runs) for runs in by_users}

    def ratios(self) -> dict[str, dict[str, dict[int, float]]]:
        """Ours → peer → users → our throughput over the peer's; a peer that answered nothing has no ratio."""
        names = list(self.rounds)
        return {
            ours: {peer: self._ratio(ours, peer) for peer in names[self.own :]}
            for ours in names[: self.own]
            if names[self.own :]
        }

    def as_json(self) -> dict[str, Any]:
        """Plain values, ready for `json`; every round is kept."""
        return {
            "servers": {
                name: {
                    "output_tokens_per_s": self.throughput(name),
                    "runs": [asdict(run) for run in self.median_runs(name)],
                    "rounds": [[asdict(run) for run in runs] for runs in rounds],
                }
                for name, rounds in self.rounds.items()
            },
            "ratios": self.ratios(),
        }

    def _ratio(self, ours: str, peer: str) -> dict[int, float]:
        own, theirs = self.throughput(ours), self.throughput(peer)
        return {users: round(own[users] / rate, 3) for users, rate in theirs.items() if rate > 0}


async def compare(
    sides: Sequence[Side],
    users: Sequence[int],
    load: Workload,
    rounds: int,
    own: int = 1,
    start_timeout_s: float = 600.0,
    on_run_end: Callable[[str, int, RunReport], None] = lambda name, round, run: None,
) -> Comparison:
    """A B A B…: measure each side with each number of users, while the other servers are paused."""
    models: dict[int, str] = {}
    for side in sides:
        if id(side.server) not in models:
            models[id(side.server)] = await side.server.ready(start_timeout_s)
            side.server.pause()
    results: dict[str, list[list[RunReport]]] = {side.name: [] for side in sides}
    for round in range(rounds):
        for side in sides:
            asked = replace(load, seed=load.seed + round, protection=side.protection)
            server, model = side.server, models[id(side.server)]
            server.resume()
            runs: list[RunReport] = []
            for count in users:
                runs.append(await measure(server.address, server.api_key, model, asked, count))
                on_run_end(side.name, round, runs[-1])
            server.pause()
            results[side.name].append(runs)
    return Comparison(results, own)
