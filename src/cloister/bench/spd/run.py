"""The whole measurement: which servers are started, which parts each is for, and what is kept when one fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cloister.bench.answer import BrokenAnswer
from cloister.bench.spd.deployment import Deployment, deploy
from cloister.bench.spd.parts import break_down, time_first_tokens, time_spare_vaults, weigh_vaults
from cloister.bench.spd.plan import Part
from cloister.bench.spd.random_model import LlamaShape, write_random_model
from cloister.bench.spd.results import Results
from cloister.bench.suite.measurement import Measurement, Watcher
from cloister.bench.suite.rounds import Measured, Point, measure_in_turn
from cloister.models.source import ModelFolder

# On one server each, in this order. The last has no spare vaults, so that those it has are those it was asked for.
SERVERS: tuple[tuple[Part, ...], ...] = (("users", "lengths", "breakdown", "ttft", "vaults"), ("model",), ("memory",))


class Bench(Measurement[Results]):
    """Measures on servers of its own."""

    foreseen = (*Measurement.foreseen, BrokenAnswer)

    def __init__(
        self,
        results: Results,
        folder: ModelFolder,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        *,
        larger: ModelFolder | LlamaShape | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan = results.plan
        self._folder = folder
        self._larger = larger or LlamaShape()
        self._arguments = tuple(arguments)

    async def run(self, parts: Collection[Part]) -> None:
        """A part that fails is noted with its reason, and the next one is measured."""
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
                        await self._measure(part, server)
                    left.remove(part)
        except self.foreseen as failure:  # it did not start
            for part in left:
                self._failed(part, failure)
            self._save()

    @asynccontextmanager
    async def _open(self, part: Part, scratch: Path) -> AsyncIterator[Deployment]:
        folder, arguments = self._folder, self._arguments
        if part == "model":
            folder = self._larger_model(scratch)
        elif part == "memory":
            vaults = str(self._plan.idle_vaults + 1)
            arguments = (*arguments, "--spare-vaults", "0", "--max-vaults", vaults)
        async with deploy(folder, scratch, arguments) as server:
            yield server

    def _larger_model(self, scratch: Path) -> ModelFolder:
        if isinstance(self._larger, ModelFolder):
            return self._larger
        millions = round(self._larger.parameters / 1e6)
        return write_random_model(scratch / f"random-llama-{millions}m", self._larger, like=self._folder)

    async def _measure(self, part: Part, server: Deployment) -> None:
        plan, results, watcher = self._plan, self._results, self._watcher
        match part:
            case "users":
                await self._in_turn(part, server, plan.users_points())
            case "lengths":
                await self._in_turn(part, server, plan.length_points())
            case "model":
                await self._in_turn(part, server, plan.model_points())
            case "breakdown":
                watcher.begin(part, len(plan.breakdown_points()))
                await break_down(server, plan, results.breakdown, watcher.advance)
            case "ttft":
                watcher.begin(part, plan.ttft_samples)
                await time_first_tokens(server, plan, results.ttft, watcher.advance)
            case "vaults":
                watcher.begin(part, plan.vault_samples)
                await time_spare_vaults(server, plan, results.vaults, watcher.advance)
            case "memory":
                watcher.begin(part, plan.idle_vaults)
                await weigh_vaults(server, plan, results.vaults, results.memory, watcher.advance)

    async def _in_turn(self, part: Part, server: Deployment, points: list[Point]) -> None:
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
