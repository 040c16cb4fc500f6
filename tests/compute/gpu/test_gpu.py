"""The GPU's kernels, where there is a GPU; elsewhere that its absence is said plainly and harms nothing."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import cloister
from cloister.compute.base import Device
from cloister.compute.choose import choose_device, gpu_device
from cloister.compute.gpu import find
from cloister.compute.gpu.find import refusal
from cloister.config import EngineSettings
from cloister.errors import SetupError

MOST_ERROR = 5e-3
needs_gpu = pytest.mark.skipif(bool(refusal()), reason=refusal())


@needs_gpu
def test_products_are_right_and_a_rows_bits_do_not_depend_on_the_other_rows() -> None:
    from cloister.compute.gpu.device import GpuDevice
    from cloister_bench.gpu.trials.check import check_linear

    errors, differing = check_linear(GpuDevice())
    assert max(errors.values()) < MOST_ERROR and not differing


@needs_gpu
def test_norms_and_embeddings_are_right() -> None:
    from cloister.compute.gpu.device import GpuDevice
    from cloister_bench.gpu.trials.check import check_norm_and_embedding

    assert max(check_norm_and_embedding(GpuDevice()).values()) < MOST_ERROR


@needs_gpu
def test_attention_is_right_and_its_bits_do_not_depend_on_chunks_or_splits() -> None:
    from cloister.compute.gpu.device import GpuDevice
    from cloister_bench.gpu.trials.check import check_attention

    errors, differing = check_attention(GpuDevice())
    assert max(errors.values()) < MOST_ERROR and not differing


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_reason_and_a_way_out_are_named() -> None:
    with pytest.raises(SetupError, match="no NVIDIA GPU") as failure:
        gpu_device()
    assert "CPU" in str(failure.value.hint)


def test_only_the_gpus_own_package_imports_cuda() -> None:
    """And `find`, which every machine may import, imports no sibling that does."""
    source = Path(cloister.__file__).parent
    importing = {p.relative_to(source).as_posix() for p in source.rglob("*.py") if "\nfrom cuda." in p.read_text()}
    assert importing and all(name.startswith("compute/gpu/") for name in importing)
    imported = {
        line
        for line in (source / "compute/gpu/find.py").read_text().splitlines()
        if line.startswith(("from", "import"))
    }
    assert not {line for line in imported if "cuda" in line or "compute.gpu" in line}


def test_an_older_gpu_is_refused_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert re.search(r"Hopper.*8\.0", find.in_child(find.ask).refusal)


def test_another_process_asks_and_tells_what_it_found() -> None:
    asked_here: list[int] = []

    def found() -> find.Found:
        asked_here.append(1)
        return find.Found(code={64: b"machine code"})

    assert find.in_child(found) == find.Found(code={64: b"machine code"})
    assert not asked_here


def test_who_fails_or_dies_asking_is_a_refusal() -> None:
    def fails() -> find.Found:
        raise RuntimeError("driver and library differ")

    def dies() -> find.Found:
        os._exit(3)

    assert "RuntimeError" in find.in_child(fails).refusal
    assert "ended before" in find.in_child(dies).refusal


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Device]:
    """What is chosen on a machine where the GPU is refused for this reason, or is there."""

    def choose(why: str, **settings: Any) -> Device:
        found = find.Found(refusal=why)
        monkeypatch.setattr(find, "find", lambda: found)
        return choose_device(EngineSettings(threads=1, **settings))

    gpu = MagicMock()
    gpu.GpuDevice.return_value.kernels.name = "cuda"
    monkeypatch.setitem(sys.modules, "cloister.compute.gpu.device", gpu)
    return choose


def test_a_gpu_computes_unless_something_else_was_asked_for(chosen: Callable[..., Device]) -> None:
    assert chosen("").kernels.name == chosen("", kernels="gpu").kernels.name == "cuda"
    others: tuple[dict[str, str], ...] = (
        {"kernels": "native"},
        {"kernels": "reference"},
        {"dtype": "fp32"},
        {"weights": "int8"},
    )
    for other in others:
        assert chosen("", **other).kernels.name != "cuda", other
    with pytest.raises(SetupError, match="bf16"):
        chosen("", kernels="gpu", dtype="fp32")


def test_a_gpu_that_cannot_be_used_is_said_if_it_was_asked_for(chosen: Callable[..., Device]) -> None:
    assert chosen("too old").kernels.name != "cuda"
    with pytest.raises(SetupError, match="too old"):
        chosen("too old", kernels="gpu")
