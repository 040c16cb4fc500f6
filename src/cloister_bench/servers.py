"""Servers as processes, compared round by round; one runs at a time, the others are paused. Every round has its own
seed, so that no side answers from a prefix cache. The figure of a side is the median of its rounds."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Self

from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister.files import needed
from cloister_bench.connection import on_free_port
from cloister_bench.load import first_model, measure
from cloister_bench.messages import Workload
from cloister_bench.report import RunReport


class ServerProcess:
    """Use it in a `with`: nothing outlives the block. Output goes to a file: a pipe without a reader would stop it."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        address: HttpAddress,
        log: Path,
        *,
        api_key: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.api_key = api_key
        self._command = list(command)
        self.log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with needed(f"{self.name} cannot be started", self._command[0]), self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self.resume()
        self._signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=20)
        self._signal(signal.SIGKILL)  # children that did not follow
        self._process.wait()

    @property
    def pid(self) -> int:
        """Also its process group."""
        assert self._process is not None
        return self._process.pid

    async def ready(self, timeout_s: float) -> str:
        """Waits until it lists a model; returns that model's name."""
        assert self._process is not None
        deadline = perf_counter() + timeout_s
        while self._process.poll() is None and perf_counter() < deadline:
            try:
                return await first_model(self.address, self.api_key, timeout_s=5)
            except ServiceUnavailable:
                await asyncio.sleep(0.5)
        ended = self._process.poll()
        what = f"ended with status {ended}" if ended is not None else f"was not up after {timeout_s:g} s"
        raise ServiceUnavailable(f"{self.name} {what}.", hint=f"Its output is in {self.log}.")

    def pause(self) -> None:
        """Stops its threads: an idle server that polls would take the other's cores."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class OwnServer(ServerProcess):
    """`model` is what it calls its model once it is up."""

    model: str

    def __init__(
        self, model: str | Path | None, logs: Path, arguments: Sequence[str] = (), api_key: str = DEVELOPMENT_KEY
    ) -> None:
        address = on_free_port()
        command = [sys.executable, "-m", "cloister", "serve", "--port", str(address.port)]
        command += [*(["--model", str(model)] if model else []), *arguments]
        super().__init__("cloister serve", command, address, logs / f"serve-{address.port}.log", api_key=api_key)

    def wait(self, timeout_s: float = 300.0) -> None:
        self.model = asyncio.run(self.ready(timeout_s))


@dataclass(frozen=True, slots=True)
class Side:
    """A server at a level of protection. With `sessions` every user names one and so keeps its vault."""

    name: str
    server: ServerProcess
    protection: str | None = None
    sessions: bool = False


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
        rates = {name: self.throughput(name) for name in self.rounds}
        own, peers = list(rates)[: self.own], list(rates)[self.own :]
        return {
            ours: {
                peer: {users: round(rates[ours][users] / rate, 3) for users, rate in rates[peer].items() if rate > 0}
                for peer in peers
            }
            for ours in own
            if peers
        }

    def as_json(self) -> dict[str, Any]:
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
    sides: Sequence[Side],
    users: Sequence[int],
    load: Workload,
    rounds: int,
    own: int = 1,
    start_timeout_s: float = 600.0,
    on_run_end: Callable[[str, int, RunReport], None] = lambda name, round, run: None,
) -> Comparison:
    """A B A B…, while the other servers are paused."""
    models: dict[int, str] = {}
    for side in sides:
        if id(side.server) not in models:
            models[id(side.server)] = await side.server.ready(start_timeout_s)
            side.server.pause()
    results: dict[str, list[list[RunReport]]] = {side.name: [] for side in sides}
    for round in range(rounds):
        for side in sides:
            asked = replace(load, seed=load.seed + round, protection=side.protection, sessions=side.sessions)
            server, model = side.server, models[id(side.server)]
            server.resume()
            runs: list[RunReport] = []
            for count in users:
                runs.append(await measure(server.address, server.api_key, model, asked, count))
                on_run_end(side.name, round, runs[-1])
            server.pause()
            results[side.name].append(runs)
    return Comparison(results, own)
