"""What of the service's account reaches /metrics."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Stats


def told(stats: Stats | None) -> dict[str, str]:
    async def ask() -> Stats | None:
        return stats

    lines = asyncio.run(Metrics().exposition(ask)).decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if re.match(r"cloister_(service|vault_)", line))


def test_the_services_seconds_are_told_by_phase() -> None:
    stats = Stats(steps=7, seconds={"query": 0.25, "step": 2.0}, vault_ready_ms=12.5, vault_wait_ms=0.0)
    assert told(stats) == {
        'cloister_service_seconds_total{phase="query"}': "0.25",
        'cloister_service_seconds_total{phase="step"}': "2.0",
        "cloister_service_steps_total": "7.0",
        "cloister_vault_ready_ms": "12.5",
        "cloister_vault_wait_ms": "0.0",
    }


@pytest.mark.parametrize("stats", [None, Stats(up=False)])
def test_without_a_service_nothing_is_told_as_if_it_were_zero(stats: Stats | None) -> None:
    assert told(stats) == {"cloister_vault_ready_ms": "NaN", "cloister_vault_wait_ms": "NaN"}


def test_a_service_cannot_make_up_labels() -> None:
    """Whatever it would like to say aloud: the names of phases are ours."""
    frame = msgspec.msgpack.encode({"type": "stats", "seconds": {"a secret": 1.0}})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(frame, type=Stats)
