import asyncio
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cloister.compute.layout import BLOCK_TOKENS as KERNELS_BLOCK_TOKENS
from cloister.errors import ServiceUnavailable
from cloister.gateway.metrics import Metrics
from cloister.messages.generation import Stats
from cloister.models.source import ModelFolder
from cloister_bench.spd.deployment import (
    BLOCK_TOKENS,
    Counters,
    deploy,
    descendants,
    kv_bytes,
    memory_of,
    total,
)


def told(stats: Stats) -> list[Sample]:
    async def ask() -> Stats:
        return stats

    families = text_string_to_metric_families(asyncio.run(Metrics().exposition(ask)).decode())
    return [sample for family in families for sample in family.samples]


def test_counters_are_read_from_what_the_gateway_tells() -> None:
    stats = Stats(steps=12, seconds={"waiting": 0.5, "step": 2.25}, vault_ready_ms=20.5, vault_wait_ms=0.0)
    counters = Counters.read(told(stats))
    assert counters == Counters({"waiting": 0.5, "step": 2.25}, 12.0, 20.5, 0.0)


def test_what_is_not_told_is_not_zero() -> None:
    counters = Counters.read(told(Stats()))
    assert counters.vault_ready_ms is None and counters.vault_wait_ms is None


async def test_a_server_that_does_not_start_says_its_last_line(tmp_path: Path) -> None:
    nowhere = ModelFolder("none", tmp_path / "none", {})
    with pytest.raises(ServiceUnavailable, match="ended with status") as failed:
        async with deploy(nowhere, tmp_path):
            raise AssertionError("it started")
    assert failed.value.hint


TWO_GENERATIONS = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.stdin.close()
child.wait()
"""


def test_descendants_are_found_over_generations() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TWO_GENERATIONS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        grandchild = int(child.stdout.readline())
        assert {child.pid, grandchild} <= descendants(os.getpid())
        assert descendants(child.pid) == {grandchild}
        child.stdin.close()
    assert not {child.pid, grandchild} & descendants(os.getpid())


def test_memory_taken_is_memory_seen() -> None:
    before = memory_of(os.getpid())
    taken = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    taken.write(b"\1" * len(taken))
    after = memory_of(os.getpid())
    taken.close()
    assert after.private - before.private > 60 << 20
    assert after.proportional >= after.private * 0.99 and after.tables > 0
    assert total([os.getpid()]) > 60 << 20


def test_kv_bytes_are_whole_blocks_of_the_models_shape() -> None:
    shape = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    assert kv_bytes(shape, 16) == kv_bytes(shape, 1) == 2 * 2 * 30 * 3 * 64 * 16
    assert kv_bytes(shape, 17) == 2 * 2 * 30 * 3 * 64 * 32
    assert kv_bytes({}, 16) is None
    assert BLOCK_TOKENS == KERNELS_BLOCK_TOKENS
