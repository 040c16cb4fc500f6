"""torch, numpy, tokenizers, jinja2, msgspec and our own kernels, inside the sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.process.sandbox.libraries"],
        cwd=Path(__file__).parents[3],
        env=os.environ | ONE_THREAD | {"TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("use_torch", 64.0 * 63),
        ("use_bfloat16_without_onednn", 64.0),
        ("use_numpy", 200.0),
        ("use_messages", {"tokens": [1, 2, 3]}),
        ("use_tokenizers", [[0, 1, 0], [1, 2]]),
        ("use_jinja", "a;b;"),
        ("use_kernels", 512.0),
        ("use_hooked_gelu", True),
        ("use_hooked_gelu_tanh", True),
    ],
)
def test_libraries_work_inside(seen: dict[str, dict[str, Any]], name: str, result: object) -> None:
    assert seen[name]["result"] == result, seen[name]
    assert not seen[name]["others"]


@pytest.mark.parametrize(
    ("name", "error"), [("take_too_much_in_torch", "RuntimeError"), ("take_too_much_in_numpy", "MemoryError")]
)
def test_too_much_memory_is_an_error_of_the_library(seen: dict[str, dict[str, Any]], name: str, error: str) -> None:
    assert seen[name]["error"] == error
    assert not seen[name]["signal"]


def test_compiling_at_run_time_fails_and_does_not_hang(seen: dict[str, dict[str, Any]]) -> None:
    """oneDNN writes machine code for a product it has not seen; a processor it has none for is fine."""
    assert seen["use_bfloat16"]["error"] == "RuntimeError" or seen["use_bfloat16"]["result"] == 64.0
    assert not seen["use_bfloat16"]["signal"]


def test_wanting_a_thread_fails_and_does_not_hang(seen: dict[str, dict[str, Any]]) -> None:
    """libgomp ends the process when it gets no thread; what matters is that it ends, and without a result."""
    assert seen["more_threads_in_torch"]["result"] is None
    assert not seen["more_threads_in_torch"]["others"]
