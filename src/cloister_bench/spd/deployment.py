"""A `cloister serve` of the bench's own, its /metrics, and its processes' memory in /proc, which only root may read."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from math import ceil, isnan
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.samples import Sample

from cloister.errors import ServiceUnavailable
from cloister.levels import OPEN, LevelName
from cloister.models.source import ModelFolder
from cloister_bench.load import User, measure
from cloister_bench.messages import Answer, Workload
from cloister_bench.report import RunReport, kinds_of_errors
from cloister_bench.servers import OwnServer
from cloister_bench.spd.plan import LEVELS
from cloister_bench.suite.measurement import Point

START_S = 120.0
REQUEST_S = 240.0


@dataclass(frozen=True, slots=True)
class Counters:
    """A time not measured yet is None."""

    seconds: Mapping[str, float]
    steps: float
    vault_ready_ms: float | None
    vault_wait_ms: float | None

    @classmethod
    def read(cls, samples: Sequence[Sample]) -> Counters:
        single = {sample.name: sample.value for sample in samples if not isnan(sample.value)}
        phases = (sample for sample in samples if sample.name == "cloister_service_seconds_total")
        return cls(
            {sample.labels["phase"]: sample.value for sample in phases},
            single.get("cloister_service_steps_total", 0.0),
            single.get("cloister_vault_ready_ms"),
            single.get("cloister_vault_wait_ms"),
        )


class Deployment(OwnServer):
    """`pid` is its controller's."""

    request_s = REQUEST_S

    def __init__(self, folder: ModelFolder, logs: Path, arguments: Sequence[str]) -> None:
        super().__init__(folder.path, logs, arguments)
        self.folder = folder

    def load(self, point: Point, seed: int) -> Workload:
        return Workload(
            input_tokens=point.input_tokens,
            output_tokens=point.output_tokens,
            requests_per_user=point.requests,
            # So every user has its vault when the clock starts, as in the paper. A single request is long enough alone.
            warmup=int(point.requests > 1),
            seed=seed,
            timeout_s=self.request_s,
            protection=point.level,
            sessions=point.level != OPEN,
        )

    async def measure(self, point: Point, seed: int) -> RunReport:
        """Raises ServiceUnavailable if not one of the users was answered."""
        run = await measure(self.address, self.api_key, self.model, self.load(point, seed), point.users)
        if not run.output_tokens:
            raise ServiceUnavailable(f"No request was answered ({point}): {kinds_of_errors([run])}.")
        return run

    async def ask(
        self, level: LevelName, input_tokens: int, output_tokens: int, seed: int, session: str | None = None
    ) -> Answer:
        """Raises BrokenAnswer."""
        load = Deployment.load(self, Point(level, 1, input_tokens, output_tokens), seed)
        user = User(self.address, self.api_key, load)
        try:
            return await user.ask(load.request(self.model, session, "ask"))
        finally:
            await user.leave()

    async def counters(self) -> Counters:
        return Counters.read(await self.metrics())


Kind = TypeVar("Kind", bound=Deployment)


@asynccontextmanager
async def started(server: Kind, levels: Iterable[LevelName]) -> AsyncIterator[Kind]:
    """Waits until the server has answered at each of these levels once."""
    with server:
        try:
            server.model = await server.ready(START_S)
        except ServiceUnavailable as failed:
            raise ServiceUnavailable(failed.message, hint=_last_line(server.log)) from None
        for level in levels:
            await server.measure(Point(level, 1, 16, 4), seed=-1)
        yield server


def deploy(folder: ModelFolder, logs: Path, arguments: Sequence[str] = ()) -> AbstractAsyncContextManager[Deployment]:
    return started(Deployment(folder, logs, arguments), LEVELS)


def _last_line(log: Path) -> str:
    """The log's folder is gone by the time a user reads this."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "It said nothing."


PROC = Path("/proc")
BLOCK_TOKENS = 16
_KB = re.compile(r"^(\w+):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes: private memory, the proportional share of all, and the kernel's tables for it."""

    private: int
    proportional: int
    tables: int


def descendants(pid: int) -> set[int]:
    children: dict[int, set[int]] = {}
    for stat in PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The name, in parentheses, may hold anything; the parent is the second field behind it.
            parent = int(stat.read_text(errors="replace").rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, set()).add(int(stat.parent.name))
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for parent in new for child in children.get(parent, ())} - found
        found |= new
    return found


def memory_of(pid: int) -> Memory:
    """PermissionError where that is not ours to know."""
    rollup = _fields((PROC / str(pid) / "smaps_rollup").read_text())
    status = _fields((PROC / str(pid) / "status").read_text())
    private = rollup["Private_Clean"] + rollup["Private_Dirty"] + rollup.get("Private_Hugetlb", 0)
    return Memory(private, rollup["Pss"], status.get("VmPTE", 0))


def total(pids: Iterable[int]) -> int:
    """What they cost together: each page counted once, and the kernel's tables."""
    each = [memory_of(pid) for pid in pids]
    return sum(one.proportional + one.tables for one in each)


def kv_bytes(config: Mapping[str, Any], tokens: int) -> int | None:
    """In bf16; None where config.json does not say the model's shape."""
    try:
        heads = config["num_attention_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        width = (config.get("num_key_value_heads") or heads) * dim
        return int(2 * 2 * config["num_hidden_layers"] * width * BLOCK_TOKENS * ceil(tokens / BLOCK_TOKENS))
    except (KeyError, TypeError):
        return None


def _fields(text: str) -> dict[str, int]:
    return {name: int(kb) * 1024 for name, kb in _KB.findall(text)}
