"""The smallest number of nodes that serves a number of users within a target, while one node is away."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from statistics import mean
from typing import Any

import numpy as np

from cloister.access.cloud import MOST_NODES
from cloister.errors import SetupError
from cloister.levels import LevelName
from cloister_bench.capacity.machine import Machine
from cloister_bench.capacity.simulation import Outage, Results, Scenario, Simulation
from cloister_bench.capacity.traces import Request, Trace, scaled

SAMPLED = 24  # nodes that a search simulates: each has its own share, whatever the others have
_EXACT = 64  # up to here each number of nodes is tried; beyond it, those 2% apart
_ALWAYS = 1e9


@dataclass(frozen=True, slots=True)
class Aims:
    """`per_hour`: what one user asks. `first_s`: the 99th percentile. `busy`: the most that nodes compute of the time,
    on average. `away`: nodes that are away throughout."""

    users: int
    levels: Mapping[LevelName, float]
    per_hour: float = 10.0
    first_s: float = 5.0
    busy: float = 0.7
    away: int = 1
    tokens: bool = True
    verified: float = 0.1
    price_per_hour: float | None = None
    seed: int = 0

    @property
    def per_second(self) -> float:
        return self.users * self.per_hour / 3600


Progress = Callable[[str, float], None]


class Planner:
    def __init__(self, machine: Machine, trace: Trace, aims: Aims, progress: Progress = lambda *_: None) -> None:
        self._machine, self._trace, self._aims, self._progress = machine, trace, aims, progress
        self._requests: Sequence[Request] = list(scaled(trace, aims.per_second, aims.seed))
        if not self._requests:
            raise SetupError("So few users ask nothing in this time.", hint="Take more --users or --minutes.")
        self.tried: list[dict[str, Any]] = []

    def find(self) -> int:
        """SetupError if no number of nodes is enough."""
        low, high = self._aims.away, max(2, self._guess())
        while not self._good(high := min(high, MOST_NODES)):
            if high == MOST_NODES:
                raise self._impossible()
            low, high = high, ceil(high * 1.6)
        while high - low > max(1, high // 50 if high > _EXACT else 1):
            middle = (low + high) // 2
            low, high = (low, middle) if self._good(middle) else (middle, high)
        while high > SAMPLED and not self._good(high, whole=True):
            high = ceil(high * 1.03)
            if high > MOST_NODES:
                raise self._impossible()
        return high

    def simulate(self, nodes: int, simulated: int | None = None, outages: Sequence[Outage] | None = None) -> Results:
        aims = self._aims
        if outages is None:
            outages = [Outage(node, 0.0, _ALWAYS) for node in range(min(aims.away, nodes - 1))]
        scenario = Scenario(nodes, aims.levels, outages, aims.tokens, aims.verified, False, simulated, aims.seed)
        end, what = self._trace.seconds, f"{nodes} nodes"
        return Simulation(self._machine, scenario, lambda at: self._progress(what, at / end)).run(self._requests)

    def _good(self, nodes: int, whole: bool = False) -> bool:
        found = self.simulate(nodes, None if whole else SAMPLED + self._aims.away)
        away = self._aims.away
        first = percentile(found.first_s, 99)
        busy = found.busy_s / (max(1, len(found.nodes) - away) * self._trace.seconds)
        refused = found.outcomes["refused"] / max(1, len(found.first_s))
        good = bool(found.first_s) and first <= self._aims.first_s and busy <= self._aims.busy and refused <= 0.001
        self.tried.append({"nodes": nodes, "first_p99_s": round(first, 3), "busy": round(busy, 4), "good": good})
        return good

    def _guess(self) -> int:
        """By the work of each request, were rows full."""
        seconds = 0.0
        sample = self._requests[:: max(1, len(self._requests) // 1000)]
        for level, share in self._aims.levels.items():
            profile, rows = self._machine.profile(level), self._machine.limits.max_running
            each = profile.step_s(rows) / rows
            seconds += share * mean(one.prompt * profile.token_s + one.output * each for one in sample)
        return ceil(self._aims.per_second * seconds / self._aims.busy) + self._aims.away

    def _impossible(self) -> SetupError:
        last = self.tried[-1]
        return SetupError(
            f"Even {last['nodes']} nodes give a 99th percentile of {last['first_p99_s']:g} s.",
            hint="Long prompts alone may take longer: raise --first-token, or plan with a faster machine.",
        )

    def report(self, nodes: int, found: Results) -> dict[str, Any]:
        """What a simulation of all nodes found, and what they need."""
        machine, aims, seconds = self._machine, self._aims, self._trace.seconds
        counts = {name: found.of_nodes(name) for name in ("vaults", "most_vaults", "most_tokens", "redeemed")}
        vaults, redeemed = sum(counts["vaults"]), sum(counts["redeemed"])
        alive = max(1, nodes - aims.away)
        hourly = None if aims.price_per_hour is None else nodes * aims.price_per_hour
        asked = found.outcomes.total()
        return {
            "nodes": nodes,
            "away": min(aims.away, nodes - 1),
            "requests_per_s": round(asked / seconds, 3),
            "first_p50_s": round(percentile(found.first_s, 50), 3),
            "first_p99_s": round(percentile(found.first_s, 99), 3),
            "answer_p50_s": round(percentile(found.whole_s, 50), 3),
            "output_tokens_per_s": round(found.tokens_made / seconds, 1),
            "busy": round(found.busy_s / (alive * seconds), 4),
            "busiest": round(max(found.of_nodes("busy_s")) / seconds, 4),
            "outcomes": dict(found.outcomes),
            "retried": found.retried,
            "vault_starts_per_node_and_s": round(vaults / alive / seconds, 4),
            "mean_wait_for_vault_s": round(sum(found.of_nodes("waited_for_vaults_s")) / max(vaults, 1), 4),
            "most_vaults_of_a_node": int(max(counts["most_vaults"])),
            "redeemed_per_node_and_s": round(redeemed / alive / seconds, 4),
            "redeeming_share": round(redeemed / alive / seconds / machine.redeemed_per_s, 6),
            "issuer_cores": round(redeemed / seconds / machine.issued_per_s, 3) if aims.tokens else None,
            "node_bytes": self._bytes(counts),
            "price_per_hour": hourly,
            "price_per_1000_requests": None if hourly is None else round(1000 * hourly * seconds / 3600 / asked, 4),
            "aims": asdict(aims),
            "machine": {"model": machine.model, "processor": machine.processor, "measured": machine.measured},
            "trace": {"name": self._trace.name, "seconds": round(seconds, 1), "requests": asked},
            "tried": self.tried,
        }

    def _bytes(self, counts: Mapping[str, Sequence[float]]) -> int | None:
        """Of the fullest node, if each peak came at once."""
        if (memory := self._machine.memory) is None:
            return None
        pairs = zip(counts["most_vaults"], counts["most_tokens"], strict=True)
        return int(memory.node + max(vaults * memory.vault + tokens * memory.token for vaults, tokens in pairs))


def percentile(values: Sequence[float], place: float) -> float:
    return float(np.percentile(values, place)) if values else 0.0
