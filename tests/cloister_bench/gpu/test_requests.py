"""What the bench computes, on a device of plain torch: all designs answer with the same tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from cloister.compute.base import KVCache, LinkAnswerer
from cloister_bench.gpu.requests import Partition, measure_requests
from tests.compute.fake_device import FakeDevice
from tests.compute.on_fake_device import decoder_on


def test_open_and_partitioned_requests_have_the_same_tokens() -> None:
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
    assert [row["design"] for row in rows] == ["open", "partitioned"]
    assert told == [(2, 2, 2)] and device.askers[0].questions
    assert [row.get("same_tokens", True) for row in rows] == [True] * 2
    assert all(row["tokens_per_s"] > 0 and 0 < row["ttft_ms"] < 1e3 * row["seconds"] for row in rows)
