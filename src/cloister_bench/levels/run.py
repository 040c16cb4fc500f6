"""One server with all levels: the sides in turn, round by round, then `mpc`, whose parties take cores and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from cloister.errors import CloisterError
from cloister.levels import MPC
from cloister.models.source import ModelFolder
from cloister_bench.levels.plan import SERVED, Part, Side, WordsLoad
from cloister_bench.levels.results import Results
from cloister_bench.messages import Answer, BrokenAnswer
from cloister_bench.spd.deployment import REQUEST_S, Deployment, started
from cloister_bench.suite.measurement import Measurement, Point, Watcher, measure_in_turn

MPC_START_S = 900.0  # parties are dealt the weights, and compile
RETRY_S = 5.0


class Node(Deployment):
    def load(self, point: Point, seed: int) -> WordsLoad:
        """Warmed up: when the clock starts, a session has its vault and its substitutes."""
        return WordsLoad(
            input_tokens=point.input_tokens,
            output_tokens=point.output_tokens,
            requests_per_user=point.requests,
            seed=seed,
            timeout_s=REQUEST_S,
            protection=point.level,
            sessions=isinstance(point, Side) and point.session,
        )


def why_no_mpc(folder: ModelFolder) -> str | None:
    if find_spec("cloister_mpc") is None:
        return "not installed: `make mpc` installs it (Python 3.11)"
    from cloister_mpc.offer import require_memory, require_packages

    try:
        require_packages()
        require_memory(folder)
    except CloisterError as why:
        return f"{why.message} {why.hint}"
    return None


class Bench(Measurement[Results]):
    foreseen = (*Measurement.foreseen, BrokenAnswer)

    def __init__(
        self,
        results: Results,
        folder: ModelFolder,
        watcher: Watcher,
        save: Callable[[], None] = lambda: None,
        arguments: Sequence[str] = (),
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan, self._folder, self._arguments = results.plan, folder, arguments

    async def run(self, parts: Collection[Part]) -> None:
        with TemporaryDirectory(prefix="cloister-bench-") as logs, self._noting("server"):
            async with started(Node(self._folder, Path(logs), self._arguments), SERVED) as node:
                if "levels" in parts:
                    with self._noting("levels"):
                        await self._in_turn(node)
                if "mpc" in parts:
                    with self._noting("mpc"):
                        await self._on_shares(node)

    async def _in_turn(self, node: Node) -> None:
        plan, sides = self._plan, self._plan.sides()
        self._watcher.begin("levels", sum(side.rounds for side in sides))

        def ended(side: Point) -> None:
            self._watcher.advance(str(side))
            self._save()

        measured = self._results.measured
        await measure_in_turn(node, sides, measured, seconds=plan.seconds, seed=plan.seed, on_end=ended)

    async def _on_shares(self, node: Node) -> None:
        """The first of two requests starts the parties and compiles; the second is what a user then waits for."""
        self._results.mpc = {"reason": why_no_mpc(self._folder)}
        if self._results.mpc["reason"] is None:
            self._watcher.begin("mpc", 2)
            begun = monotonic()
            await self._answer(node, 0)
            start = monotonic() - begun
            self._watcher.advance("the parties have started")
            answer = await self._answer(node, 1)
            self._watcher.advance("1 user")
            seconds = (answer.last_token - answer.first_token) / max(1, answer.output_tokens - 1)
            self._results.mpc |= {
                "first_request_s": round(start, 1),
                "first_token_s": round(answer.first_token - answer.sent, 1),
                "seconds_per_token": round(seconds, 1),
            }

    async def _answer(self, node: Node, number: int) -> Answer:
        """Asks again while the parties start."""
        plan, begun = self._plan, monotonic()
        while True:
            try:
                return await node.ask(MPC, plan.input_tokens, plan.mpc_tokens, seed=plan.seed + number)
            except BrokenAnswer as broken:
                if broken.kind not in ("HTTP 503", "timeout") or monotonic() - begun > MPC_START_S:
                    raise
            await asyncio.sleep(RETRY_S)
