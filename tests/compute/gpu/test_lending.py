"""What a vault exposes in memory that is lent to it, slot by slot: checked without a GPU."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from cloister.compute.gpu.exposure import BEFORE, ArenaShape
from cloister.levels import MOST_FAKES

SHAPE = ArenaShape(blocks=6, dim=64, block_bytes=8192, slots=3)
CUDA = ("cuda", "cuda.core", "cuda.bindings")
MINE = ("program", "kernels", "device", "memory", "answering", "lending")


@pytest.fixture
def lending(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported as if cuda-core were installed."""
    mine = [f"cloister.compute.gpu.{name}" for name in MINE]
    for name in CUDA:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    for name in mine:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock())
    yield importlib.import_module(mine[-1])
    for name in mine:
        sys.modules.pop(name, None)


def answerer(lending: ModuleType, shape: ArenaShape = SHAPE) -> tuple[Any, torch.Tensor]:
    model = SimpleNamespace(rotation=lambda far: (torch.full((64,), float(far)), torch.zeros(64)))
    exposed = torch.zeros(shape.slots, shape.words, dtype=torch.int32)
    return lending.LentAnswerer(model, SimpleNamespace(arena=shape, exposed=exposed)), exposed


def test_each_prompt_of_a_request_has_words_of_its_own_over_blocks_in_common(lending: ModuleType) -> None:
    made, exposed = answerer(lending)
    made.start()
    assert not exposed.any(), "the rehearsal leaves nothing exposed"
    for slot, (blocks, end) in enumerate([([4, 0, 2], 40), ([4, 0, 5, 1], 50)]):
        assert made.free_slot() == slot
        made.expose(slot, blocks, start=0, end=end, rotation=end)
    assert exposed[:, 0].tolist() == [40, 50, 0]
    assert exposed[:, BEFORE + 128 :].tolist() == [[4, 0, 2, 0, 0, 0], [4, 0, 5, 1, 0, 0], [0] * 6]
    assert exposed[1, BEFORE : BEFORE + 64].view(torch.float32).tolist() == [50.0] * 64


def test_who_is_withdrawn_leaves_nothing_and_the_others_stay(lending: ModuleType) -> None:
    made, exposed = answerer(lending)
    for slot in range(3):
        made.expose(slot, [slot], start=0, end=16, rotation=0)
    assert made.free_slot() is None
    with pytest.raises(ValueError, match="taken"):
        made.expose(1, [0], start=0, end=1, rotation=0)
    before = exposed.clone()
    made.withdraw(1)
    assert not exposed[1].any() and torch.equal(exposed[[0, 2]], before[[0, 2]])
    assert made.free_slot() == 1
    with pytest.raises(ValueError, match="taken"):
        made.expose(3, [0], start=0, end=1, rotation=0)
    with pytest.raises(ValueError, match="does not lie"):
        made.expose(1, [6], start=0, end=1, rotation=0)
    assert made.free_slot() == 1, "one that was refused is free"


def test_a_vault_has_slots_for_all_sequences_of_a_request(lending: ModuleType) -> None:
    assert answerer(lending, ArenaShape(6, 64, 8192, lending.EXPOSED))[0].slots > MOST_FAKES
