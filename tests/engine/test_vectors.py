"""Embeddings by the engine: each is that of its own prompt, bit for bit, whatever is computed beside it."""

from __future__ import annotations

import struct

import pytest
import torch

from cloister.engine.vectors import unit_vectors
from cloister.messages.generation import Failed
from cloister.messages.types import SamplingParams
from cloister.prefix.radix import RadixCache
from tests.engine.fake_runner import FakeRunner, expected_logits
from tests.engine.node import drain, make_engine, request

PROMPTS = [[(7 * length + place) % 31 for place in range(length)] for length in (1, 2, 4, 5, 17, 40)]
EMBED = {"embed": True, "max_tokens": 0}


def vector(prompt: list[int]) -> bytes:
    return unit_vectors(expected_logits(prompt, 32)[-1:])[0]


@pytest.mark.parametrize("chunk", [1, 3, 16, 512])
@pytest.mark.parametrize("blocks", [14, 64])
def test_alone_or_among_others(chunk: int, blocks: int) -> None:
    runner = FakeRunner(num_blocks=blocks)
    engine = make_engine(runner, chunk_tokens=chunk)
    for number, prompt in enumerate(PROMPTS):
        assert not isinstance(engine.submit(request(number, prompt, f"t{number % 2}", **EMBED)), Failed)
        engine.submit(request(100 + number, prompt, "t1", logprobs=2))
    together = drain(engine)
    for number, prompt in enumerate(PROMPTS):
        assert together[number].vector == vector(prompt) and together[number].finish == "length"
        alone = make_engine()
        alone.submit(request(1, prompt, logprobs=2))
        assert together[100 + number] == drain(alone)[1], "an embedding leaves no trace in an answer"
    stats = engine.stats()
    assert stats.prompt_tokens == 2 * sum(map(len, PROMPTS)) and stats.blocks_free == stats.blocks_total


def test_many_short_ones_are_computed_in_one_step() -> None:
    runner = FakeRunner()
    engine = make_engine(runner, chunk_tokens=64)
    for number in range(8):
        engine.submit(request(number, [number + 1] * 8, **EMBED))
    assert len(engine.step()) == 8 and runner.most_tokens == 64 and not engine.has_work


def test_computed_prompts_are_neither_used_nor_kept() -> None:
    runner = FakeRunner()
    engine = make_engine(runner, RadixCache())
    for number, params in enumerate(({}, EMBED, EMBED)):
        before = runner.computed_tokens
        engine.submit(request(number, PROMPTS[5], **params))
        assert drain(engine)[number].cached == 0
        assert runner.computed_tokens - before >= 40
    engine.forget("a")
    engine.submit(request(7, PROMPTS[5], **EMBED))
    drain(engine)
    engine.submit(request(8, PROMPTS[5]))
    assert drain(engine)[8].cached == 0


def test_a_cancelled_one_frees_what_it_held() -> None:
    engine = make_engine(chunk_tokens=4)
    engine.submit(request(1, PROMPTS[5], **EMBED))
    assert engine.step() == [] and engine.cancel(1)
    assert not engine.has_work and engine.stats().blocks_free == engine.stats().blocks_total


@pytest.mark.parametrize("params", [{"embed": True}, {**EMBED, "prompt_logprobs": 0}])
def test_an_answer_beside_it_is_refused(params: dict[str, object]) -> None:
    refused = make_engine().submit(request(1, [1, 2], **params))
    assert isinstance(refused, Failed) and (refused.code, refused.param) == ("invalid_request", "input")


def test_a_runner_without_states_refuses_it() -> None:
    runner = FakeRunner()
    runner.width = 0
    assert isinstance(make_engine(runner).submit(request(1, [1, 2], **EMBED)), Failed)


def test_a_state_without_a_direction_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.tensor([[0.0, 0.0], [3.0, 4.0], [float("nan"), 1.0], [float("inf"), 1.0]])
    runner = FakeRunner()
    monkeypatch.setattr(runner, "states", lambda chunks: states)
    engine = make_engine(runner)
    for number in range(4):
        engine.submit(request(number, [number + 1], **EMBED))
    given = drain(engine)
    assert struct.unpack("<2f", given[1].vector) == pytest.approx((0.6, 0.8))
    assert all(given[number].failed is not None for number in (0, 2, 3)) and not engine.take_failure()
    assert not states.any(), "what was computed is overwritten"


def test_requested_names_it_for_levels_that_refuse_it() -> None:
    assert SamplingParams(embed=True, max_tokens=0).requested == {"input"}
