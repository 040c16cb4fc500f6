"""The whole measurement on a real server, as small as it can be."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cloister.bench.spd.figures import draw_figures
from cloister.bench.spd.plan import PARTS, Plan
from cloister.bench.spd.random_model import LlamaShape, write_random_model
from cloister.bench.spd.results import Results
from cloister.bench.spd.run import Bench
from cloister.models.source import ModelFolder

TINY = LlamaShape(hidden=64, layers=2, heads=4, kv_heads=2, ffn=128)
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
    mapped_vaults=2,
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, smollm_folder: ModelFolder) -> ModelFolder:
    return write_random_model(tmp_path_factory.mktemp("models") / "tiny", TINY, like=smollm_folder)


async def test_everything_is_measured_and_nothing_is_left_behind(tiny: ModelFolder, tmp_path: Path) -> None:
    results, told, saved = Results(SMALL, tiny.name), Told(), []
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
    assert phases["steps"] >= 3 and phases["phases_ms"]["q_projection"] > 0 and phases["phases_ms"]["other"] > 0
    assert document["ttft"]["ratio"] > 0 and document["vaults"]["without_spare_ms"] > 0
    assert document["vaults"]["with_spare_ms"] is not None
    _check_memory(document["memory"])
    assert len(saved) == len(PARTS) and saved[0]["runs"] and not saved[0]["ttft"]
    assert len(draw_figures(document, tmp_path)) == 4
    commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    assert not any("cloister" in command for command in commands)


def _check_memory(memory: dict[str, object]) -> None:
    if os.geteuid() != 0:
        assert memory["beyond_kv_mb"] is None and "root" in str(memory["reason"])
        return
    assert memory["idle_vaults"] == 3 and memory["weights_pss_vaults"] == 2
    weights, counted = memory["weights_mb"], memory["weights_pss_mb"]
    assert isinstance(weights, float) and isinstance(counted, float) and 0 < counted <= weights
    private, together = memory["vault_private_mb"], memory["idle_vaults_mb"]
    assert isinstance(private, float) and isinstance(together, float) and 1 < private < together


async def test_parts_that_fail_are_noted_and_the_rest_is_kept(tiny: ModelFolder, tmp_path: Path) -> None:
    results, saved = Results(replace(SMALL, ttft_tokens=100_000), tiny.name), []
    bench = Bench(results, tiny, Told(), lambda: saved.append(1), larger=ModelFolder("none", tmp_path / "none", {}))
    await bench.run(("ttft", "vaults", "model"))
    assert [failure["part"] for failure in results.failed] == ["ttft", "model"]
    assert "HTTP 400" in results.failed[0]["reason"] and "ended with status" in results.failed[1]["reason"]
    assert results.vaults["with_spare_ms"] is not None and len(saved) == 3
