"""Where the prompts of `obfuscated` lie and how many of them fit: checked without a GPU."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.compute.without_cuda import imported


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("cloister_bench.gpu.steps", monkeypatch)


def test_prompts_of_a_user_begin_in_common_blocks_and_end_in_their_own(variants: ModuleType) -> None:
    blocks, tables = variants.tables(3, 5)
    assert tables == [[0, 1, 2, 3, 4], [0, 1, 5, 6, 7], [0, 1, 8, 9, 10]]
    assert blocks == 11
    assert variants.tables(1, 1) == (1, [[0]]), "one block cannot be shared"


def test_a_recorded_step_keeps_the_batch_that_it_was_recorded_with(
    variants: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording holds addresses, not tensors: freed, they would be somebody else's."""
    steps = sys.modules["cloister_bench.gpu.steps"]
    made: list[weakref.ref[Any]] = []

    class Filled:
        def __init__(self, *_: Any, **__: Any) -> None:
            made.append(weakref.ref(self))

        def fill(self, _batch: Any) -> None:
            return None

    monkeypatch.setattr(steps, "Bucket", Filled)
    decoder: Any = SimpleNamespace(queries_per_kv_head=4, device=SimpleNamespace(place=None, record=lambda _run: None))
    recorded = steps.Recorded(decoder, None, steps.remote_chunks(2))
    gc.collect()
    assert made[0]() is not None and recorded is not None
