from __future__ import annotations

from dataclasses import replace

import msgspec

from cloister_bench.gpu.plan import FULL, PARTS, PER_USER, QUICK, Case
from cloister_bench.gpu.shapes import LLAMA_3_8B, SHAPES, step_bytes, token_bytes, weight_bytes


def test_what_the_targets_need_comes_first() -> None:
    cases = FULL.cases()
    assert [case.part for case in cases[:8]] == ["floor", *["steps"] * 4, "requests", "transformers", "steps"]
    assert cases[0].shape == LLAMA_3_8B and cases[2].settings() == [8, 1]
    assert cases[-1].compiled, "which takes a minute, in a process of its own"
    shapes = [case.shape for case in cases[:-1]]
    assert list(dict.fromkeys(shapes)) == list(SHAPES), "a shape's cases are in a row: its weights are made once"
    assert shapes == sorted(shapes, key=list(SHAPES).index)


def test_all_that_was_asked_for_is_planned() -> None:
    cases = [case for case in FULL.cases() if case.shape == LLAMA_3_8B]
    steps = {(case.users, case.prompt) for case in cases if case.part == "steps"}
    assert steps == {(users, prompt) for users in (1, 8, 32, 64) for prompt in (64, 2048)}
    requests = {(case.users, case.prompt, case.answer) for case in cases if case.part == "requests"}
    assert {(32, 64, 64), (32, 512, 128), (8, 2048, 64)} <= requests
    assert {case.part for case in cases} == set(PARTS)
    assert {case.lambdas for case in cases if case.part == "variants"} == {(8, 64, 128)}


def test_isolation_settings_have_no_more_processes_than_users_or_clients() -> None:
    settings = {users: Case(LLAMA_3_8B, "steps", users, processes=(8, 1, PER_USER)).settings() for users in (1, 8, 32)}
    assert settings == {1: [1], 8: [8, 1], 32: [8, 1, 32]}
    assert Case(LLAMA_3_8B, "steps", 64, processes=(PER_USER,)).settings() == [], "MPS has 48 clients"


def test_parts_and_shapes_can_be_chosen_and_a_case_travels() -> None:
    plan = replace(FULL, shapes=("Llama-3.2-1B",), parts=("floor", "breakdown"))
    assert {(case.shape, case.part) for case in plan.cases()} == {
        ("Llama-3.2-1B", "floor"),
        ("Llama-3.2-1B", "breakdown"),
    }
    assert len(QUICK.cases()) < len(FULL.cases()) / 3
    for case in FULL.cases():
        assert msgspec.json.decode(msgspec.json.encode(case), type=Case) == case


def test_bytes_of_a_step_are_those_of_weights_keys_and_values() -> None:
    config = SHAPES[LLAMA_3_8B]
    assert token_bytes(config) == 2 * 2 * 32 * 8 * 128
    assert weight_bytes(config) / 2 == 7_504_658_432  # Llama-3-8B's 8.03e9 without embedding and norms
    assert step_bytes(config, 8, 104) == weight_bytes(config) + 8 * 104 * token_bytes(config)
    sizes = {name: round(weight_bytes(config) / 2e9, 1) for name, config in SHAPES.items()}
    assert sizes == {
        "Llama-3-8B": 7.5,
        "Llama-3.2-1B": 1.2,
        "Llama-3.2-3B": 3.2,
        "Code-Llama-13B": 12.9,
        "Code-Llama-34B": 33.5,
    }
