"""The whole measurement on a real server, as small as it can be."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cloister.controller.sessions import most_of_one
from cloister.errors import ServiceUnavailable
from cloister.models.source import ModelFolder
from cloister_bench.messages import Answer, BrokenAnswer
from cloister_bench.report import RunReport
from cloister_bench.spd.deployment import Counters
from cloister_bench.spd.plan import LEVELS, PARTS, Plan
from cloister_bench.spd.random_model import write_random_model
from cloister_bench.spd.results import FIGURES, Results
from cloister_bench.spd.run import Bench, enough_for_one
from cloister_bench.suite.documents import draw_figures
from cloister_bench.suite.measurement import Point
from tests.cloister_bench.spd.fakes import TINY, run

SMALL = Plan(
    users=(1, 2),
    input_tokens=16,
    output_tokens=4,
    requests=1,
    rounds=1,
    isolated_users=1,
    lengths=((16, 4), (32, 4)),
    shared_users=2,
    breakdown_users=(2,),
    ttft_tokens=64,
    ttft_samples=2,
    vault_samples=2,
    idle_vaults=3,
)


class Told:
    def __init__(self) -> None:
        self.parts: dict[str, list[int]] = {}

    def begin(self, part: str, total: int) -> None:
        self.part = part
        self.parts[part] = [0, total]

    def advance(self, what: str) -> None:
        self.parts[self.part][0] += 1

    def say(self, what: str) -> None: ...


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm_folder: ModelFolder) -> ModelFolder:
    return write_random_model(tmp_path_factory.mktemp("models"), TINY, like=smollm_folder)


@pytest.mark.release  # the levels' bench does the same with every level
async def test_a_part_is_measured_and_nothing_is_left_behind(tiny: ModelFolder) -> None:
    others = set(psutil.Process().children(recursive=True))
    results = Results(SMALL, tiny.name)
    await Bench(results, tiny, Told(), arguments=("--kv-cache-mib", "64")).run(("users",))
    document = results.document()
    assert document["failed"] == [] and {run["level"] for run in document["runs"]} == set(LEVELS)
    assert all(run["tokens_per_s"] > 0 and run["errors"] == 0 and run["ttft_ms"] > 0 for run in document["runs"])
    left = set(psutil.Process().children(recursive=True)) - others
    assert not any("cloister" in " ".join(process.cmdline()) for process in left)


@pytest.mark.release
async def test_everything_is_measured_and_nothing_is_left_behind(tiny: ModelFolder, tmp_path: Path) -> None:
    others = set(psutil.Process().children(recursive=True))
    plan = replace(SMALL, output_tokens=48)  # a service's seconds are told in tenths
    results, told, saved = Results(plan, tiny.name), Told(), []
    bench = Bench(
        results, tiny, told, lambda: saved.append(results.document()), larger=TINY, arguments=("--kv-cache-mib", "64")
    )
    await bench.run(PARTS)
    document = results.document()
    assert document["failed"] == [] and set(told.parts) == set(PARTS)
    runs = {(run["figure"], run["level"], run["users"], run["input_tokens"]) for run in document["runs"]}
    assert {(4, "open", 1, 16), (4, "partitioned", 2, 16), (4, "isolated", 1, 16), (6, "isolated", 2, 32)} <= runs
    assert (4, "isolated", 2, 16) not in runs and document["skipped"][0]["users"] == 2
    assert {run["model"] for run in document["runs"] if run["figure"] == 5} == {"random-llama-3m"}
    assert all(run["tokens_per_s"] > 0 and run["errors"] == 0 and run["ttft_ms"] > 0 for run in document["runs"])
    phases = document["breakdown"]["2"]
    assert phases["steps"] >= 47 and phases["step_ms"] > 0
    assert document["ttft"]["ratio"] > 0 and document["vaults"]["without_spare_ms"] > 0
    assert document["vaults"]["with_spare_ms"] is not None
    _check_memory(document["memory"])
    assert len(saved) == len(PARTS) and saved[0]["runs"] and not saved[0]["ttft"]
    assert len(draw_figures(document, tmp_path, FIGURES)) == 4
    left = set(psutil.Process().children(recursive=True)) - others
    assert not any("cloister" in " ".join(process.cmdline()) for process in left)


def _check_memory(memory: dict[str, object]) -> None:
    if os.geteuid() != 0:
        assert memory["beyond_kv_mb"] is None and "root" in str(memory["reason"])
        return
    assert memory["idle_vaults"] == 3
    private, together = memory["vault_private_mb"], memory["idle_vaults_mb"]
    assert isinstance(private, float) and isinstance(together, float) and 1 < private < together


@pytest.mark.parametrize("sessions", [1, 2, 4, 65])
def test_a_server_has_vaults_enough_for_one_tenant_alone(sessions: int) -> None:
    vaults = enough_for_one(sessions)
    assert most_of_one(vaults) >= sessions > most_of_one(vaults - 1)


class BrokenServer:
    """A server that answers short prompts only, and then not at all."""

    def __init__(self, folder: ModelFolder) -> None:
        self.folder, self.model, self.pid = folder, folder.name, os.getpid()

    async def measure(self, point: Point, seed: int) -> RunReport:
        if point.users > 1:
            raise ServiceUnavailable("It is gone.")
        return run(point.users, 10.0)

    async def ask(self, *asked: object, **more: object) -> Answer:
        raise BrokenAnswer("HTTP 400")

    async def counters(self) -> Counters:
        raise ConnectionResetError("closed")


async def test_parts_that_fail_are_noted_and_the_rest_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def open_broken(folder: ModelFolder, scratch: Path, arguments: Sequence[str]) -> AsyncIterator[BrokenServer]:
        if "--max-vaults" in arguments:
            raise ServiceUnavailable("It does not start.", hint="why")
        yield BrokenServer(folder)

    monkeypatch.setattr("cloister_bench.spd.run.deploy", open_broken)
    folder = ModelFolder("m", tmp_path, {})
    results, saved = Results(SMALL, folder.name), []
    bench = Bench(results, folder, Told(), lambda: saved.append(len(results.failed)), larger=folder)
    await bench.run(("users", "ttft", "memory"))
    assert [failure["part"] for failure in results.failed] == ["users", "ttft", "memory"]
    reasons = [failure["reason"] for failure in results.failed]
    assert "gone" in reasons[0] and "HTTP 400" in reasons[1] and "does not start" in reasons[2]
    kept = results.document()["runs"]
    assert {one["users"] for one in kept} == {1} and {one["level"] for one in kept} == set(LEVELS)
    assert saved == [1, 2, 3]


async def test_what_nobody_foresaw_still_leaves_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Buggy(BrokenServer):
        async def measure(self, point: Point, seed: int) -> RunReport:
            if point.level == "isolated":
                raise ZeroDivisionError
            return run(point.users, 10.0)

    @asynccontextmanager
    async def open_buggy(folder: ModelFolder, scratch: Path, arguments: Sequence[str]) -> AsyncIterator[BrokenServer]:
        yield Buggy(folder)

    monkeypatch.setattr("cloister_bench.spd.run.deploy", open_buggy)
    folder, saved = ModelFolder("m", tmp_path, {}), []
    results = Results(SMALL, folder.name)
    with pytest.raises(ZeroDivisionError):
        await Bench(results, folder, Told(), lambda: saved.append(results.document())).run(("users",))
    assert [one["level"] for one in saved[-1]["runs"]] == ["open", "partitioned"]
