"""Neighbours leave no trace: tokens and logprobs of a request are its own, bit for bit."""

from __future__ import annotations

import random
from typing import TypeAlias

import pytest

from cloister.messages.types import SamplingParams
from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from tests.serving.conftest import Answer, Decoders, Node
from tests.serving.prompts import make_prompts

Cases: TypeAlias = tuple[tuple[int, int, int], ...]

GREEDY = SamplingParams(max_tokens=20, temperature=0, logprobs=3)
SEEDED = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, seed=11, logprobs=0)
CHUNKS = (5, 64, 512)
FEW = ((0, 5, 64), (5, 512, 2))
ALL = tuple((company, chunk, room) for company, room in ((0, 64), (7, 64), (31, 16)) for chunk in CHUNKS)
"""How many neighbours, how many tokens of prompts a step takes, and MiB for keys and values."""


def neighbours(tokenizer: Tokenizer, count: int, seed: int) -> list[tuple[tuple[int, ...], SamplingParams]]:
    draw = random.Random(seed)
    return [
        (
            tuple(tokenizer.encode(text)),
            SamplingParams(
                max_tokens=draw.randint(1, 24),
                temperature=draw.choice((0.0, 0.7, 1.3)),
                top_k=draw.choice((0, 5, 40)),
                presence_penalty=draw.choice((0.0, 0.5)),
                seed=draw.randint(0, 999),
                logprobs=draw.choice((None, 2)),
            ),
        )
        for text in make_prompts(count, seed)
    ]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("params", "dtype"),
    [
        pytest.param(GREEDY, "fp32", id="greedy-fp32"),
        pytest.param(SEEDED, "bf16", id="seeded-bf16"),
        pytest.param(GREEDY, "int8", id="greedy-int8"),
        pytest.param(SEEDED, "fp32", id="seeded-fp32", marks=pytest.mark.release),
        pytest.param(GREEDY, "bf16", id="greedy-bf16", marks=pytest.mark.release),
    ],
)
@pytest.mark.parametrize(
    ("model_folder", "cases"),
    [("short", FEW), pytest.param("whole", ALL, marks=pytest.mark.release)],
    ids=["short", "whole"],
    indirect=["model_folder"],
)
def test_alone_or_in_company(
    model_folder: ModelFolder, decoders: Decoders, dtype: str, params: SamplingParams, cases: Cases
) -> None:
    tokenizer = Tokenizer(model_folder)
    prompt = tuple(tokenizer.encode(make_prompts(40, seed=3)[-1] * (1 if cases is FEW else 2)))
    alone = Node(decoders(dtype)).answers([(prompt, params)])[0]
    assert len(alone.tokens) == len(alone.logprobs) == 20
    least = model_folder.config["num_hidden_layers"] // 2  # MiB that hold the longest of them
    for company, chunk, room in cases:
        requests = neighbours(tokenizer, company, seed=company + chunk)
        place = company // 2
        requests.insert(place, (prompt, params))
        node = Node(decoders(dtype), chunk_tokens=chunk, kv_cache_mib=max(room, least))
        assert node.answers(requests)[place] == alone, (company, chunk)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_replay_gives_what_decoding_gave(
    model_folder: ModelFolder, decoders: Decoders, dtype: str, chunk: int
) -> None:
    """The answer's tokens, forced in one pass over prompt and answer, have the logprobs they were decoded with."""
    tokenizer = Tokenizer(model_folder)
    prompt = tuple(tokenizer.encode(make_prompts(12, seed=9)[-1]))
    decoded: Answer = Node(decoders(dtype)).answers([(prompt, GREEDY)])[0]
    forced = SamplingParams(max_tokens=0, prompt_logprobs=GREEDY.logprobs)
    node = Node(decoders(dtype), chunk_tokens=chunk)
    replay = node.answers([((*prompt, *decoded.tokens), forced)], answered=len(decoded.tokens))[0]
    assert replay.prompt_logprobs[len(prompt) - 1 :] == decoded.logprobs
