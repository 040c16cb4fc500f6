"""Sides that are measured in turn under one load, with their document. Servers that were started here are paused while
another is measured."""

import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import TypeVar

from cloister.addresses import HttpAddress
from cloister.errors import ServiceUnavailable
from cloister_bench import llama_cpp
from cloister_bench.connection import on_free_port
from cloister_bench.load import RunReport, Workload, measure
from cloister_bench.servers import Server, ServerProcess
from cloister_bench.suite import documents
from cloister_bench.suite.documents import Document, Drawing, Panel, Row, Table, charts
from cloister_bench.suite.measurement import Measurement


@dataclass(frozen=True, slots=True)
class Point:
    """One side of a comparison, a level or a server, with this number of users at once."""

    side: str
    users: int
    load: Workload

    def __str__(self) -> str:
        return f"{self.side}, {self.users} user{'s' if self.users > 1 else ''}"


Rounds = dict[int, RunReport]


def in_turn(points: Sequence[Point], rounds: int) -> Iterator[tuple[int, Point]]:
    """All sides with equally many users, one after the other; who begins changes from round to round."""
    for round in range(rounds):
        for _, group in groupby(points, key=lambda point: point.users):
            sides = list(group)
            first = round % len(sides)
            yield from ((round, side) for side in sides[first:] + sides[:first])


@dataclass
class Comparison(documents.Results):
    """`base`: the level or server that the others are compared with."""

    base: str = field(default="open", kw_only=True)
    measured: dict[Point, Rounds] = field(default_factory=dict, kw_only=True)

    def add(self, point: Point, round: int, run: RunReport) -> None:
        self.measured.setdefault(point, {})[round] = run

    def numbers(self) -> Document:
        bases = {point.users: runs for point, runs in self.measured.items() if point.side == self.base}
        runs = [summary(point, runs, bases.get(point.users, {})) for point, runs in self.measured.items()]
        return {"base": self.base, "runs": runs}

    def remarks(self) -> Document:
        return {"cores": len(os.sched_getaffinity(0))}


def summary(point: Point, runs: Rounds, base: Rounds) -> Row:
    """Medians over a side's rounds, and its throughput over the base's."""
    load, every = point.load, runs.values()
    return {
        "side": point.side,
        "level": load.protection,
        "session": load.sessions,
        "users": point.users,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "tokens_per_s": middle(run.output_tokens_per_s for run in every),
        "ratio": ratio(runs, base),
        "ttft_ms": middle(run.ttft_ms for run in every),
        "between_tokens_ms": middle(run.token_ms for run in every),
        "errors": sum(run.errors for run in every),
    }


def middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(median(known), 4) if known else None


def ratio(ours: Rounds, theirs: Rounds) -> float | None:
    """Our throughput over theirs: the median over the rounds both took part in, each compared within itself."""
    both = ours.keys() & theirs.keys()
    return middle(ours[round].output_tokens_per_s / theirs[round].output_tokens_per_s for round in both)


def tables(document: Document) -> list[Table]:
    columns = {"side": "side", "users": "users", "tokens/s": "tokens_per_s", f"of {document['base']}'s": "ratio"}
    columns |= {"first": "ttft_ms", "next": "between_tokens_ms", "errors": "errors"}
    return [Table.of(f"{document['model']}; first and next token in ms", document["runs"], columns)]


def figures(name: str) -> Mapping[str, Drawing]:
    drawn = (("tokens_per_s", "output tokens/s"), ("ttft_ms", "first token, ms"))
    panels = (Panel("users", key, "side", title, log="xy", labels={"xlabel": "users at once"}) for key, title in drawn)
    title = "{input_tokens} tokens in, {output_tokens} out"
    return {name: charts(lambda document: document["runs"], title, *panels, grid=(1, 2))}


Compared = TypeVar("Compared", bound=Comparison)


class InTurn(Measurement[Compared]):
    """A side that fails is noted, and the others are measured."""

    def _in_turn(self, points: Sequence[Point], rounds: int, measured: Callable[[Point, int], RunReport]) -> None:
        self._watcher.begin("sides", len(points) * rounds)
        for round, point in in_turn(points, rounds):
            with self._noting(str(point)):
                self._results.add(point, round, measured(point, round))
            self._watcher.advance(str(point))


def answered(server: Server, point: Point, seed: int) -> RunReport:
    """Raises ServiceUnavailable if not one of the users was answered."""
    run = measure(server.address, server.user_keys, server.model, replace(point.load, seed=seed), point.users)
    if not run.output_tokens:
        raise ServiceUnavailable(f"No request was answered ({run.kinds_of_errors}).")
    return run


START_S = 600.0


@dataclass(frozen=True, slots=True)
class Plan:
    users: tuple[int, ...]
    rounds: int
    load: Workload


def server_of(text: str, api_key: str | None) -> Server:
    """`[NAME=]URL`, `[NAME=]COMMAND`, in which {port} becomes a free port, or `llama.cpp:FORMAT`."""
    if text.startswith(llama_cpp.PREFIX):
        text = f"{text}={shlex.join(llama_cpp.command(text))}"
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


def loads(server: Server, load: Workload, levels: Sequence[str]) -> dict[str, Workload]:
    """By a side's name. `levels` are asked of a server that has levels; `+session` behind one: every user keeps a
    session."""
    asked = {}
    for each in levels if server.levels else ():
        level, session, _ = each.partition("+session")
        asked[f"{server.name} {each}"] = replace(load, protection=level, sessions=bool(session))
    return asked or {server.name: load}


def answered_awake(server: Server, point: Point, seed: int) -> RunReport:
    server.resume()
    try:
        return answered(server, point, seed)
    finally:
        server.pause()


class Bench(InTurn[Comparison]):
    def run(self, servers: Sequence[Server], levels: Sequence[str]) -> None:
        plan, sides = self._results.plan, dict[str, tuple[Server, Workload]]()
        with ExitStack() as running:
            for server in servers:
                if isinstance(server, ServerProcess):
                    running.enter_context(server)
                server.wait(START_S)
                server.pause()
                sides |= {name: (server, load) for name, load in loads(server, plan.load, levels).items()}
            self._results.base = next(iter(sides))
            points = [Point(name, users, load) for users in plan.users for name, (_, load) in sides.items()]
            self._in_turn(points, plan.rounds, lambda point, seed: answered_awake(sides[point.side][0], point, seed))
        for server in servers:
            if isinstance(server, ServerProcess):
                shutil.rmtree(server.log.parent)
