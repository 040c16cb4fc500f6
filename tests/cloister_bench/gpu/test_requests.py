"""What the bench computes, on a device of plain torch: all designs answer with the same tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from msgspec import structs

from cloister.compute.base import KVCache, LinkAnswerer
from cloister_bench.gpu import gloo
from cloister_bench.gpu.phases import PHASES, phases
from cloister_bench.gpu.requests import Partition, measure_requests
from cloister_bench.gpu.shapes import SHAPES
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


def test_the_gloo_design_merges_as_theorem_1_says() -> None:
    torch.manual_seed(0)
    q = torch.randn(3, 4, 16)
    keys, values = torch.randn(3, 2, 30, 16), torch.randn(3, 2, 30, 16)
    whole, _ = gloo.attended(q, keys, values)
    early = gloo.attended(q, keys[:, :, :11], values[:, :, :11])
    late = gloo.attended(q, keys[:, :, 11:], values[:, :, 11:])
    torch.testing.assert_close(gloo.merged(early, late), whole)
    grouped = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)
    torch.testing.assert_close(whole, grouped[:, :, 0])


def test_the_gloo_design_asks_every_users_process_in_every_layer() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 50, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = structs.replace(SHAPES["Llama-3-8B"], **sizes, **heads)
    parts: list[str] = []
    with gloo.with_vaults(config, 2, 5, steps=3, device="cpu"):
        service = gloo.GlooService(config, 2, device="cpu")
        gloo.dist.barrier()
        for _ in range(3):
            service._answers.fill_(torch.nan)
            service.step(parts.append)
            assert not service._answers.isnan().any(), "both users' processes answered"
    assert set(parts) == set(PHASES)
