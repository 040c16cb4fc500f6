"""Servers as processes; where several are compared, one runs at a time and the others are paused."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cloister.addresses import HttpAddress
from cloister.config import DEVELOPMENT_KEY
from cloister.errors import ServiceUnavailable
from cloister.files import needed
from cloister.process.hardening import PR_SET_PDEATHSIG
from cloister_bench.connection import get, on_free_port
from cloister_bench.load import first_model, measure
from cloister_bench.messages import Workload
from cloister_bench.report import RunReport
from cloister_bench.suite.measurement import Measured, Point, ratio


def end_with_parent() -> None:
    """A signal when the thread that started this process has ended, even if it was killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


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
                self._command,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
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

    async def metrics(self) -> list[Sample]:
        exchange = await get(self.address, "/metrics", self.api_key)
        if exchange.status != 200:
            raise ServiceUnavailable(f"The server does not show its metrics (HTTP {exchange.status}).")
        families = text_string_to_metric_families(exchange.body.decode())
        return [sample for family in families for sample in family.samples]


@dataclass(frozen=True, slots=True)
class Side:
    """A server at a level of protection. With `sessions` every user names one and so keeps its vault."""

    name: str
    server: ServerProcess
    protection: str | None = None
    sessions: bool = False


class Sides:
    """Measures one side while the servers of all others are paused."""

    def __init__(self, sides: Sequence[Side], load: Workload) -> None:
        self._sides, self._load = {side.name: side for side in sides}, load
        self._models: dict[ServerProcess, str] = {}

    async def start(self, timeout_s: float = 600.0) -> None:
        for server in dict.fromkeys(side.server for side in self._sides.values()):
            self._models[server] = await server.ready(timeout_s)
            server.pause()

    async def measure(self, point: Point, seed: int) -> RunReport:
        """`point.level` is a side's name."""
        side = self._sides[point.level]
        load = replace(self._load, seed=seed, protection=side.protection, sessions=side.sessions)
        side.server.resume()
        try:
            server = side.server
            return await measure(server.address, server.api_key, self._models[server], load, point.users)
        finally:
            side.server.pause()


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the sides reached. The first `own` names are ours."""

    names: Sequence[str]
    measured: Measured
    own: int = 1

    def _points(self, name: str) -> dict[int, Point]:
        return {point.users: point for point in self.measured.rounds if point.level == name}

    def _rounds(self, name: str) -> dict[int, list[RunReport]]:
        return {users: list(self.measured.rounds[point].values()) for users, point in self._points(name).items()}

    def median_runs(self, name: str) -> list[RunReport]:
        """For each number of users the round with the median throughput (the lower one of two)."""
        rounds = self._rounds(name).values()
        return [sorted(runs, key=lambda run: run.output_tokens_per_s)[(len(runs) - 1) // 2] for runs in rounds]

    def throughput(self, name: str) -> dict[int, float]:
        """Users → median output tokens/s."""
        return {users: median(run.output_tokens_per_s for run in runs) for users, runs in self._rounds(name).items()}

    def ratios(self) -> dict[str, dict[str, dict[int, float]]]:
        """Ours → peer → users → our throughput over the peer's; a peer that answered nothing has no ratio."""
        found: dict[str, dict[str, dict[int, float]]] = {}
        for ours in self.names[: self.own]:
            for peer in self.names[self.own :]:
                each = found.setdefault(ours, {}).setdefault(peer, {})
                for users, point in self._points(ours).items():
                    over = ratio(self.measured.rounds[point], self.measured.side(point, peer))
                    each |= {} if over is None else {users: round(over, 3)}
        return found

    def as_json(self) -> dict[str, Any]:
        return {
            "servers": {
                name: {
                    "output_tokens_per_s": self.throughput(name),
                    "runs": [asdict(run) for run in self.median_runs(name)],
                    "rounds": [
                        [asdict(run) for run in runs] for runs in zip(*self._rounds(name).values(), strict=True)
                    ],
                }
                for name in self.names
            },
            "ratios": self.ratios(),
        }
