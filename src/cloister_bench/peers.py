"""Servers under the same load in turn: while one is measured, those that were started here are paused. The document of
sides that were measured so, with one table and one figure."""

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from tempfile import mkdtemp

from cloister.addresses import HttpAddress
from cloister_bench.connection import on_free_port
from cloister_bench.load import RunReport, measure
from cloister_bench.messages import Workload
from cloister_bench.servers import Server, ServerProcess
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Drawing, Panel, Row, Table, charts
from cloister_bench.suite.measurement import Measured, Measurement, Point, Watcher, measure_in_turn, summary


@dataclass
class Comparison(documents.Results):
    """`base`: the level or server that the others are compared with."""

    base: str = field(default="open", kw_only=True)
    measured: Measured = field(default_factory=Measured, kw_only=True)

    def numbers(self) -> Document:
        """Only of rounds in which at least one request was answered."""
        sides = self.measured.rounds.items()
        found = Measured({side: {at: run for at, run in runs.items() if run.output_tokens} for side, runs in sides})
        runs: list[Row] = [
            {"side": point.side, **summary(point, found, self.base), "session": point.session}
            for point, rounds in found.rounds.items()
            if rounds
        ]
        return {"base": self.base, "runs": runs}

    def remarks(self) -> Document:
        return {"cores": len(os.sched_getaffinity(0))}


def tables(document: Document) -> list[Table]:
    base = document["base"]
    columns = {"side": "side", "users": "users", "tokens/s": "tokens_per_s", f"of {base}'s": f"ratio_to_{base}"}
    columns |= {"first": "ttft_ms", "next": "between_tokens_ms"}
    return [
        Table.of(f"{document['model']}; first and next token in ms", document["runs"], {**columns, "errors": "errors"})
    ]


def figures(name: str) -> Mapping[str, Drawing]:
    drawn = (("tokens_per_s", "output tokens/s"), ("ttft_ms", "first token, ms"))
    panels = (Panel("users", key, "side", title, log="xy", labels={"xlabel": "users at once"}) for key, title in drawn)
    return {
        name: charts(
            lambda document: [run for run in document["runs"] if run["tokens_per_s"]],
            "{input_tokens} tokens in, {output_tokens} out",
            *panels,
            grid=(1, 2),
        )
    }


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
