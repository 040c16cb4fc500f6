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


def test_one_that_does_not_open_the_gpu_is_noticed(
    attention: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    failing = MagicMock()
    failing.return_value.open.side_effect = SetupError("The GPU does not answer: too many clients")
    monkeypatch.setattr(attention, "GpuDevice", failing)
    processes = attention.AttentionProcesses([2])
    with pytest.raises(ServiceUnavailable, match="did not open the GPU"):
        processes.open(2)
    processes.close()
    assert "too many clients" in capfd.readouterr().err
