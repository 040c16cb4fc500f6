"""Modules of the GPU's device, imported as if cuda-core were installed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from unittest.mock import MagicMock

import pytest

CUDA = ("cuda", "cuda.core", "cuda.bindings")
GPU, BENCH = "cloister.compute.gpu.", "cloister_bench.gpu."
NEED_IT = (
    *(
        GPU + name
        for name in (
            "program",
            "kernels",
            "operands",
            "asking",
            "device",
            "memory",
            "answering",
            "link",
            "arena",
            "cache",
        )
    ),
    *(BENCH + name for name in ("attention", "steps")),
)


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, for a fixture; nobody else finds what was imported so."""
    mine = {name, *NEED_IT}
    for each in CUDA:
        monkeypatch.setitem(sys.modules, each, MagicMock())
    for each in mine:
        monkeypatch.delitem(sys.modules, each, raising=False)
    yield importlib.import_module(name)
    for each in mine:
        sys.modules.pop(each, None)
