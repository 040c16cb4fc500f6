"""The trial that shows what a machine's driver answers: one word and one exit code for each state of the GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.attest.fake_driver import built_library, running_driver

SOURCE = Path(__file__).parents[4] / "src"


def run(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, *flags, "-m", "cloister_bench.gpu.trials.evidence"]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder), "PYTHONPATH": str(SOURCE)}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def test_it_tells_each_state_of_a_machines_gpus(tmp_path: Path) -> None:
    built_library(tmp_path)
    with running_driver(tmp_path) as driver:
        code, told = run(tmp_path)
        assert code == 0 and told["gpus"] == 1 and told["reports"][0]["driver_version"] == "590.12"
        driver.state = (0, 0, 0)
        code, told = run(tmp_path, "-S")  # without any package
        assert code == 3 and told["error"]["code"] == "gpu_not_confidential" and told["gpus"] == 1
        driver.codes = {"I": 9}
        assert run(tmp_path)[0] == 2
