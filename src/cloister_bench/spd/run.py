"""The whole measurement: which servers are started, how each part is measured, and what is kept when one fails."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from cloister.controller.sessions import most_of_one
from cloister.errors import ServiceUnavailable
from cloister.levels import OPEN, PARTITIONED, LevelName
from cloister.models.source import ModelFolder
from cloister_bench.messages import BrokenAnswer
from cloister_bench.spd.deployment import Deployment, deploy, descendants, kv_bytes, memory_of, total
from cloister_bench.spd.plan import Part, Plan
from cloister_bench.spd.random_model import SIZES, write_random_model
from cloister_bench.spd.results import Results, breakdown_entry
from cloister_bench.suite.measurement import Measured, Measurement, Watcher, measure_in_turn, middle

# On one server each, in this order. The last has no spare vaults and no detector, which comes up late.
SERVERS: tuple[tuple[Part, ...], ...] = (("users", "lengths", "breakdown", "ttft", "vaults"), ("model",), ("memory",))
MB = 1e6
SETTLE_S = 0.4
SHORT_PROMPT = 64
ONLY_ROOT = "only root may read the memory of sealed processes (/proc/PID/smaps_rollup)"


class Bench(Measurement[Results]):
    foreseen = (*Measurement.foreseen, BrokenAnswer)

    def __init__(
        self,
        results: Results,
        folder: ModelFolder,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        *,
        larger: ModelFolder | Mapping[str, int] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan = results.plan
        self._folder = folder
        self._larger = larger or SIZES
        self._arguments = tuple(arguments)
        self._measures: dict[Part, Callable[[Deployment], Awaitable[None]]] = {
            "users": partial(self._in_turn, "users"),
            "lengths": partial(self._in_turn, "lengths"),
            "breakdown": self._break_down,
            "ttft": self._time_first_tokens,
            "vaults": self._time_spare_vaults,
            "model": partial(self._in_turn, "model"),
            "memory": self._weigh_vaults,
        }

    async def run(self, parts: Collection[Part]) -> None:
        with TemporaryDirectory(prefix="cloister-bench-") as scratch:
            for on_one_server in SERVERS:
                if wanted := [part for part in on_one_server if part in parts]:
                    await self._run_on_one_server(wanted, Path(scratch))

    async def _run_on_one_server(self, parts: list[Part], scratch: Path) -> None:
        left = list(parts)
        try:
            async with self._open(parts[0], scratch) as server:
                for part in parts:
                    with self._noting(part):
                        await self._measures[part](server)
                    left.remove(part)
        except self.foreseen as failure:  # it did not start
            for part in left:
                self._failed(part, failure)
            self._save()

    def _open(self, part: Part, scratch: Path) -> AbstractAsyncContextManager[Deployment]:
        folder, arguments = self._folder, self._arguments
        if part == "model":
            larger = self._larger
            folder = larger if isinstance(larger, ModelFolder) else write_random_model(scratch, larger, like=folder)
        elif part == "memory":
            vaults = enough_for_one(self._plan.idle_vaults + 1)
            arguments = (*arguments, "--spare-vaults", "0", "--max-vaults", str(vaults), "--no-detector")
        return deploy(folder, scratch, arguments)

    async def _in_turn(self, part: Part, server: Deployment) -> None:
        points = self._plan.points(part)
        self._watcher.begin(part, sum(point.rounds for point in points))
        measured = Measured()
        self._results.measured[part] = (server.folder.name, measured)
        await measure_in_turn(
            server,
            points,
            measured,
            seconds=self._plan.seconds_of(part),
            seed=self._plan.seed,
            on_end=lambda point: self._watcher.advance(str(point)),
        )

    async def _break_down(self, server: Deployment) -> None:
        """Figure 7: the service counts its own time. Vaults compute the prompts, so all its steps decode."""
        plan, points = self._plan, self._plan.breakdown_points()
        self._watcher.begin("breakdown", len(points))
        for unprotected, partitioned in zip(points[::2], points[1::2], strict=True):
            plain = await server.measure(unprotected, plan.seed)
            self._watcher.advance(str(unprotected))
            before = await server.counters()
            run = await server.measure(partitioned, plan.seed)
            after = await server.counters()
            spent = {phase: seconds - before.seconds.get(phase, 0.0) for phase, seconds in after.seconds.items()}
            entry = breakdown_entry(spent, after.steps - before.steps, run, plain)
            self._results.breakdown[str(partitioned.users)] = entry
            self._watcher.advance(str(partitioned))

    async def _time_first_tokens(self, server: Deployment) -> None:
        plan = self._plan
        self._watcher.begin("ttft", plan.ttft_samples)
        waits: dict[LevelName, list[float]] = {OPEN: [], PARTITIONED: []}
        for sample in range(plan.ttft_samples):
            for level in list(waits)[:: 1 if sample % 2 else -1]:
                answer = await server.ask(level, plan.ttft_tokens, 2, seed=plan.seed + sample)
                waits[level].append(1000 * (answer.first_token - answer.sent))
            self._watcher.advance(f"first token, {plan.ttft_tokens} in")
        ratios = [ours / theirs for ours, theirs in zip(waits[PARTITIONED], waits[OPEN], strict=True)]
        self._results.ttft |= {
            "input_tokens": plan.ttft_tokens,
            "open_ms": round(median(waits[OPEN]), 3),
            "partitioned_ms": round(median(waits[PARTITIONED]), 3),
            "ratio": round(median(ratios), 4),
        }

    async def _time_spare_vaults(self, server: Deployment) -> None:
        """How long a new session waits for its vault when there are spare ones, as there are by default."""
        self._watcher.begin("vaults", self._plan.vault_samples)
        waits: list[float | None] = []
        for sample in range(self._plan.vault_samples):
            await asyncio.sleep(SETTLE_S)  # the one taken last is being replaced
            await server.ask(PARTITIONED, 16, 1, seed=self._plan.seed + sample)
            waits.append((await server.counters()).vault_wait_ms)
            self._watcher.advance("a new user's vault")
        self._results.vaults |= {"with_spare_ms": middle(waits)}

    async def _weigh_vaults(self, server: Deployment) -> None:
        """Sessions that have been served once and wait, on a server without spare vaults: readiness and memory."""
        plan, memory = self._plan, self._results.memory
        self._watcher.begin("memory", plan.idle_vaults)
        await asyncio.sleep(SETTLE_S)  # vaults of the warm-up are ending
        before = descendants(server.pid)
        try:
            empty = total({server.pid, *before})
        except PermissionError:
            empty = None
        ready: list[float | None] = []
        for number in range(plan.vault_samples if empty is None else plan.idle_vaults):
            await server.ask(PARTITIONED, SHORT_PROMPT, 1, seed=plan.seed + number, session=f"idle-{number}")
            ready.append((await server.counters()).vault_ready_ms)
            self._watcher.advance("vaults that wait")
        self._results.vaults |= {"without_spare_ms": middle(ready)}
        if empty is None:
            memory |= {**dict.fromkeys(("beyond_kv_mb", "vault_private_mb", "idle_vaults_mb")), "reason": ONLY_ROOT}
        else:
            memory |= await _weigh(server, plan, before, empty)


def enough_for_one(sessions: int) -> int:
    """How many vaults a server must have for one tenant to get `vaults`: it reserves some for others."""
    return next(most for most in count(sessions) if most_of_one(most) >= sessions)


async def _weigh(server: Deployment, plan: Plan, before: set[int], empty: int) -> dict[str, Any]:
    await asyncio.sleep(SETTLE_S)
    idle = descendants(server.pid) - before
    if len(idle) != plan.idle_vaults:
        raise ServiceUnavailable(f"{plan.idle_vaults} vaults should be waiting, and there are {len(idle)}.")
    together = total({server.pid, *before, *idle}) - empty
    private = [memory_of(pid).private for pid in idle]
    await server.ask(PARTITIONED, plan.ttft_tokens, 1, seed=plan.seed, session="long")
    (long,) = descendants(server.pid) - before - idle
    long_private = memory_of(long).private
    kv, long_kv = (kv_bytes(server.folder.config, tokens) for tokens in (SHORT_PROMPT, plan.ttft_tokens))
    beyond = None if kv is None or long_kv is None else max(max(private) - kv, long_private - long_kv)
    return {
        "beyond_kv_mb": _mb(beyond),
        "vault_private_mb": _mb(median(private)),
        "idle_vaults": plan.idle_vaults,
        "idle_vaults_mb": _mb(together),
        "reason": None,
    }


def _mb(value: float | None) -> float | None:
    return None if value is None else round(value / MB, 2)
