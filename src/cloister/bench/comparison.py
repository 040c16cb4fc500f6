"""Servers side by side: the same load on each in turn, several times over, and the ratio of their throughputs.

Only one server runs at a time; the others are paused. Every round has its own seed, the same for all servers, so that
nobody answers from a prefix cache. The figure of a server is the median of its rounds.
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
class Comparison:
    """All rounds of all servers: `rounds[name]` holds one list of runs for each round. The first name is ours."""

    rounds: Mapping[str, list[list[RunReport]]]

    def median_runs(self, name: str) -> list[RunReport]:
        """For each number of users the round with the median throughput (the lower one of two)."""
        by_users = zip(*self.rounds[name], strict=True)
        return [sorted(runs, key=lambda run: run.output_tokens_per_s)[(len(runs) - 1) // 2] for runs in by_users]

    def throughput(self, name: str) -> dict[int, float]:
        """Users → median output tokens/s."""
        by_users = zip(*self.rounds[name], strict=True)
        return {runs[0].users: median(run.output_tokens_per_s for run in runs) for runs in by_users}

    def ratios(self) -> dict[str, dict[int, float]]:
        """Peer → users → our throughput over the peer's; a peer that answered nothing has no ratio."""
        ours, *peers = self.rounds
        own = self.throughput(ours)
        return {
            peer: {
                users: round(own[users] / theirs, 3) for users, theirs in self.throughput(peer).items() if theirs > 0
            }
            for peer in peers
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


async def compare(
    servers: Sequence[ServerProcess],
    users: Sequence[int],
    load: Workload,
    rounds: int,
    start_timeout_s: float = 600.0,
    on_run_end: Callable[[str, int, RunReport], None] = lambda name, round, run: None,
) -> Comparison:
    """A B A B…: measure each server with each number of users, while the others are paused."""
    models: dict[str, str] = {}
    for server in servers:
        models[server.name] = await server.ready(start_timeout_s)
        server.pause()
    results: dict[str, list[list[RunReport]]] = {server.name: [] for server in servers}
    for round in range(rounds):
        seeded = replace(load, seed=load.seed + round)
        for server in servers:
            server.resume()
            runs: list[RunReport] = []
            for count in users:
                runs.append(await measure(server.address, server.api_key, models[server.name], seeded, count))
                on_run_end(server.name, round, runs[-1])
            server.pause()
            results[server.name].append(runs)
    return Comparison(results)
