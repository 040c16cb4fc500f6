"""Parts of the weights' file by where they lie in it: on any machine, with a copy in the host's memory."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloister.compute.gpu.weights import SharedWeights

SIZE, WHOLE = 4096, 8192


def shared() -> tuple[torch.Tensor, torch.Tensor, SharedWeights]:
    """The file, its copy, which is longer, and what finds one in the other."""
    file = torch.arange(SIZE // 2, dtype=torch.int16).view(torch.uint8)
    copy = torch.zeros(WHOLE, dtype=torch.uint8)
    copy[:SIZE] = file
    memory: Any = SimpleNamespace(bytes=copy)
    return file, copy, SharedWeights(file, memory)


def test_a_part_is_found_where_it_lies_in_its_dtype_and_shape() -> None:
    file, copy, weights = shared()
    for start, end, dtype, shape in ((64, 192, torch.bfloat16, (8, 8)), (0, SIZE, torch.int32, (-1,))):
        part = file[start:end].view(dtype).view(shape)
        found = weights.find(part)
        assert found is not None and found.dtype == dtype and found.shape == part.shape
        assert found.data_ptr() == copy.data_ptr() + start
        assert torch.equal(found.view(torch.uint8), part.view(torch.uint8))


def test_what_is_not_of_the_file_or_not_in_a_row_is_not_found() -> None:
    file, _, weights = shared()
    assert weights.find(torch.zeros(64)) is None
    assert weights.find(file.view(64, 64).t()) is None
    around = torch.zeros(3 * SIZE, dtype=torch.uint8)
    inner: Any = SimpleNamespace(bytes=torch.zeros(WHOLE, dtype=torch.uint8))
    within = SharedWeights(around[SIZE : 2 * SIZE], inner)
    assert within.find(around[SIZE : 2 * SIZE]) is not None
    for start, end in ((SIZE - 1, SIZE + 8), (2 * SIZE - 8, 2 * SIZE + 1), (0, SIZE), (2 * SIZE, 3 * SIZE)):
        assert within.find(around[start:end]) is None, "a byte beyond would be another's"


class Memory:
    """In the host's: what happened to it, in order."""

    def __init__(self, size: int, happened: list[str]) -> None:
        self.held, self.happened = torch.zeros(2 * size, dtype=torch.uint8), happened

    @property
    def bytes(self) -> torch.Tensor:
        self.happened.append("used")
        return self.held

    def protect(self) -> None:
        self.happened.append(f"protected when it held {int(self.held.sum())}")

    def export(self) -> int:
        return 5


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    done: list[str] = []

    def adopt(descriptor: int, size: int, *, writes: bool) -> Memory:
        done.append(f"adopted {descriptor}, {size}, {writes}")
        return Memory(size, done)

    kind = SimpleNamespace(create=lambda size: Memory(size, done), adopt=adopt)
    monkeypatch.setitem(sys.modules, "cloister.compute.gpu.memory", SimpleNamespace(SharedMemory=kind))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: done.append("waited"))
    return done


def test_who_copies_gives_up_writing_when_all_is_copied(happened: list[str]) -> None:
    file = torch.ones(256, dtype=torch.uint8)
    made = SharedWeights.copied(file)
    assert happened == ["used", "waited", "protected when it held 256", "used"] and made.export() == 5
    found = made.find(file[8:16])
    assert found is not None and found.tolist() == [1] * 8


def test_who_adopts_never_may_write(happened: list[str]) -> None:
    SharedWeights.adopted(torch.ones(256, dtype=torch.uint8), 9)
    assert happened[0] == "adopted 9, 256, False"
