"""`cloister serve` on a machine whose driver is ours: a client that requires a confidential GPU gets to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from cloister.attest import node as node_module
from cloister.attest.nvidia.reports import GpuPolicy, verify_gpu_reports
from cloister.attest.policy import Policy
from cloister.client.verification import examine
from cloister.models.source import ModelFolder
from cloister.transparency.seen import SeenLogs
from tests.attest.fake_driver import built_library, running_driver
from tests.fuzz.nvidia_made import NOW
from tests.served import running_server
from tests.serving.conftest import TINY

REQUIRED = Policy(allow_software_tee=True, require_gpu=True, gpu=GpuPolicy(allow_unmeasured=True))


def test_a_served_node_shows_its_gpu_or_nothing(
    tmp_path: Path, tiny_folder: ModelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(built_library(tmp_path).parent))
    arguments = ("--model", str(tiny_folder.path), *TINY, "--gpu-evidence", "nvml")
    with running_driver(tmp_path) as driver:

        def trusting(data: bytes, nonce: bytes, **more: Any) -> Any:
            return verify_gpu_reports(data, nonce, **more | {"at": NOW, "roots": driver.gpus[0].roots})

        monkeypatch.setattr(node_module, "verify_gpu_reports", trusting)
        memory = SeenLogs(tmp_path / "logs.json")
        with running_server(tmp_path / "log", *arguments) as server:
            verdict = examine(server.url(), REQUIRED, memory=memory).verdict
            assert verdict.passed, verdict.broken
            assert server.child("gpu-reporter").is_running()
            driver.state = (0, 0, 0)
            asked = httpx.post(f"{server.url()}/v1/evidence", json={"nonce": "00" * 32, "since": 0})
            assert asked.status_code == 500 and asked.json()["error"]["code"] == "gpu_not_confidential"
            refused = examine(server.url(), REQUIRED, memory=memory).verdict
            assert [check.name for check in refused.broken] == ["evidence"]
