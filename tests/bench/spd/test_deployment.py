from pathlib import Path

import pytest

from cloister.bench.spd.deployment import Counters, deploy
from cloister.errors import ServiceUnavailable
from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Stats
from cloister.models.source import ModelFolder


def test_counters_are_read_from_what_the_gateway_tells() -> None:
    stats = Stats(steps=12, seconds={"waiting": 0.5, "step": 2.25}, vault_ready_ms=20.5, vault_wait_ms=0.0)
    counters = Counters.read(Metrics().exposition(stats).decode())
    assert counters == Counters({"waiting": 0.5, "step": 2.25}, 12.0, 20.5, 0.0)


def test_what_is_not_told_is_not_zero() -> None:
    counters = Counters.read(Metrics().exposition(Stats()).decode())
    assert counters.vault_ready_ms is None and counters.vault_wait_ms is None


async def test_a_server_that_does_not_start_says_its_last_line(tmp_path: Path) -> None:
    nowhere = ModelFolder("none", tmp_path / "none", {})
    with pytest.raises(ServiceUnavailable, match="ended with status") as failed:
        async with deploy(nowhere, tmp_path):
            raise AssertionError("it started")
    assert failed.value.hint
