"""The bench's attention processes, as far as they go without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from cloister.errors import ServiceUnavailable, SetupError
from tests.compute.without_cuda import imported


@pytest.fixture
def attention(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("cloister_bench.gpu.attention", monkeypatch)


def test_why_an_attention_process_does_not_open_the_gpu_is_said(
    attention: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = MagicMock()
    failing.return_value.open.side_effect = SetupError("The GPU does not answer: too many clients\nand more")
    monkeypatch.setattr(attention, "GpuDevice", failing)
    processes = attention.AttentionProcesses([2])
    with pytest.raises(ServiceUnavailable, match=r"did not open the GPU: The GPU does not answer: too many clients$"):
        processes.open(2)
    processes.close()


def test_one_that_ends_without_a_word_is_noticed(attention: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = MagicMock()
    dying.return_value.open.side_effect = KeyboardInterrupt
    monkeypatch.setattr(attention, "GpuDevice", dying)
    processes = attention.AttentionProcesses([1])
    with pytest.raises(ServiceUnavailable, match=r"did not open the GPU: it ended$"):
        processes.open(1)
    processes.close()
