from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cloister.models.source import read_plainly
from cloister_bench.gpu.model import SHAPE, RandomWeights, step_bytes
from cloister_bench.gpu.plan import FULL, PARTS, QUICK, Case


def test_what_the_targets_need_comes_first() -> None:
    cases = FULL.cases()
    assert [case.part for case in cases[:8]] == ["floor", *["steps"] * 4, "requests", "requests", "steps"]
    assert cases[-1].compiled, "which takes a minute, in a process of its own"


def test_all_that_was_asked_for_is_planned() -> None:
    cases = FULL.cases()
    steps = {(case.users, case.prompt) for case in cases if case.part == "steps"}
    assert steps == {(users, prompt) for users in (1, 8, 32, 64) for prompt in (64, 2048)}
    requests = {(case.users, case.prompt, case.answer) for case in cases if case.part == "requests"}
    assert requests == {(32, 64, 64), (32, 512, 128), (8, 64, 64)}
    assert {case.part for case in cases} == set(PARTS)
    assert {case.lambdas for case in cases if case.part == "obfuscated"} == {(8, 64)}


def test_there_are_no_more_attention_processes_than_users() -> None:
    settings = {users: Case("steps", users).settings() for users in (1, 8, 32)}
    assert settings == {1: [1], 8: [8, 1], 32: [8, 1]}


def test_parts_can_be_chosen_and_a_case_travels() -> None:
    plan = replace(FULL, parts=("floor", "obfuscated"))
    assert {case.part for case in plan.cases()} == {"floor", "obfuscated"}
    assert len(QUICK.cases()) < len(FULL.cases()) / 1.5
    for case in FULL.cases():
        assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


def test_bytes_of_a_step_are_those_of_weights_keys_and_values() -> None:
    weights = 2 * 7_504_658_432  # Llama-3-8B's 8.03e9 without embedding and norms
    assert step_bytes(0, 0) == weights
    assert step_bytes(8, 104) == weights + 8 * 104 * (2 * 2 * 32 * 8 * 128)
    assert SHAPE.head_dim * SHAPE.num_attention_heads == SHAPE.hidden_size


@pytest.mark.parametrize("tied", [False, True])
def test_random_weights_are_named_as_a_llamas_are(tied: bool) -> None:
    """A decoder refuses tensors that it does not use."""
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    plain = read_plainly({**config.to_dict(), "torch_dtype": "bfloat16"})
    assert plain is not None
    weights = RandomWeights(plain)
    assert set(weights) == {name for name, _ in model.named_parameters()}
    assert len(weights) == len(set(weights)) and "model.norm.weight" in weights and "lm_head.bias" not in weights
