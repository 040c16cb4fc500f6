"""What the bench computes, on a device of plain torch: all designs answer with the same tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cloister.compute.base import KVCache, LinkAnswerer
from cloister_bench.gpu.requests import Partition, measure_requests
from cloister_bench.gpu.results import PHASES, phases
from tests.compute.fake_device import FakeDevice
from tests.compute.on_fake_device import decoder_on


def test_open_partitioned_and_isolated_requests_have_the_same_tokens() -> None:
    device = FakeDevice()
    decoder = decoder_on(device)
    told: list[tuple[int, int, int]] = []

    @contextmanager
    def partitions(count: int, users: int, blocks: int) -> Iterator[Partition]:
        told.append((count, users, blocks))
        asker, vaults = device.asker(decoder, 0), list[tuple[KVCache, LinkAnswerer]]()
        for user in range(users):
            (question_out, question_in), (answer_out, answer_in) = os.pipe(), os.pipe()
            cache = device.cache(decoder.cache_shape, blocks)
            answerer = device.answerer(decoder, cache, question_out, answer_in)
            asker.attach(user, question_in, answer_out)
            for fd in (question_out, question_in, answer_out, answer_in):
                os.close(fd)
            answerer.start()
            vaults.append((cache, answerer))
        yield Partition(asker, vaults)
        for user in range(users):
            asker.detach(user)

    rows = list(measure_requests(decoder, partitions, 2, 17, 3, [2]))
    assert [row["design"] for row in rows] == ["open", "partitioned", "isolated"]
    assert told == [(2, 2, 2)] and device.askers[0].questions
    assert [row.get("same_tokens", True) for row in rows] == [True] * 3
    assert all(row["tokens_per_s"] > 0 and 0 < row["ttft_ms"] < 1e3 * row["seconds"] for row in rows)


def test_the_seven_parts_add_up_to_the_step() -> None:
    us = {"qkv": 12.0, "out": 8.0, "gate_up": 58.0, "down": 27.0, "norm": 3.0, "rotate": 2.0, "attend": 8.0}
    us |= {"head": 250.0, "greatest": 11.0}
    asking = phases(us, 32, 2 / 3, 6.0, asks=True)
    assert tuple(asking) == PHASES and sum(asking.values()) == pytest.approx(6.0)
    assert asking["q_projection"] == pytest.approx(0.256) and asking["waiting_for_input_attention"] > 1
    alone = phases(us, 32, 2 / 3, 4.2, asks=False)
    assert alone["waiting_for_input_attention"] == 0.0
    short = phases(us, 32, 2 / 3, 1.0, asks=True)
    assert short["waiting_for_input_attention"] == 0.0, "kernels overlap: nothing is less than nothing"
