"""Servers under the same load in turn: while one is measured, those that were started here are paused."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import mkdtemp

from cloister.addresses import HttpAddress
from cloister_bench.comparison import Comparison
from cloister_bench.connection import on_free_port
from cloister_bench.load import RunReport, measure
from cloister_bench.messages import Workload
from cloister_bench.servers import Server, ServerProcess
from cloister_bench.suite.measurement import Measurement, Point, Watcher, measure_in_turn

START_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    users: tuple[int, ...]
    rounds: int
    load: Workload


def server_of(text: str, api_key: str | None) -> Server:
    """`[NAME=]URL` or `[NAME=]COMMAND`, in which {port} becomes a free port."""
    name, separator, what = text.partition("=")
    if not separator or "/" in name or " " in name:
        name, what = "", text
    if what.startswith(("http://", "https://")):
        address = HttpAddress.parse(what)
        return Server(name or address.authority, address, api_key)
    address = on_free_port()
    command = [word.replace("{port}", str(address.port)) for word in shlex.split(what)]
    log = Path(mkdtemp(prefix="cloister-peer-")) / "log"  # stays if the server does not start
    return ServerProcess(name or command[0], command, address, log, api_key)


class Bench(Measurement[Comparison]):
    def __init__(
        self, results: Comparison, servers: Sequence[Server], watcher: Watcher, save: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(results, watcher, save)
        self._plan: Plan = results.plan
        self._servers, self._sides = servers, dict[str, tuple[Server, Workload]]()

    def run(self, levels: Sequence[str]) -> None:
        """`levels` are asked of servers that have levels; `+session` behind one: every user keeps a session."""
        plan = self._plan
        with ExitStack() as running:
            for server in self._servers:
                if isinstance(server, ServerProcess):
                    running.enter_context(server)
                server.wait(START_S)
                server.pause()
                self._add(server, levels if server.has_levels else ())
            self._results.base = next(iter(self._sides))
            tokens = (plan.load.input_tokens, plan.load.output_tokens, plan.load.requests_per_user)
            points = [Point(name, users, *tokens, plan.rounds) for users in plan.users for name in self._sides]
            self._watcher.begin("servers", len(points) * plan.rounds)
            found, seed = self._results.measured, plan.load.seed
            measure_in_turn(self, points, found, seconds=inf, seed=seed, on_end=self._ended)
        for server in self._servers:
            if isinstance(server, ServerProcess):
                shutil.rmtree(server.log.parent)

    def _add(self, server: Server, levels: Sequence[str]) -> None:
        if not levels:
            self._sides[server.name] = server, self._plan.load
        for each in levels:
            level, session, _ = each.partition("+session")
            load = replace(self._plan.load, protection=level, sessions=bool(session))
            self._sides[f"{server.name} {each}"] = server, load

    def measure(self, point: Point, seed: int) -> RunReport:
        server, load = self._sides[point.level]
        server.resume()
        try:
            load = replace(load, seed=seed)
            return measure(server.address, server.api_key, server.model, load, point.users)
        finally:
            server.pause()

    def _ended(self, point: Point) -> None:
        self._watcher.advance(str(point))
        self._save()
