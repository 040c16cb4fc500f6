from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from cloister.models.source import read_plainly
from cloister_bench.gpu.model import SHAPE, RandomWeights, step_bytes
from cloister_bench.gpu.run import FIGURES, Plan, Results, tables
from cloister_bench.suite.documents import draw_figures

RATE = 4.0e12
LOADS = [(users, prompt) for prompt in (64, 2048) for users in (1, 8, 32, 64)]


def steps(users: int, prompt: int) -> list[dict[str, Any]]:
    """Eight processes cost 4%, one 2%."""
    ms = 1.2e3 * step_bytes(users, prompt + 40) / RATE
    rows: list[dict[str, Any]] = [{"design": "open", "ms": ms}, {"processes": 8, "mb": 684.0}]
    for count in dict.fromkeys((min(8, users), 1)):
        ratio = 1.02 if count == 1 else 1.04
        rows.append({"design": "partitioned", "processes": count, "ms": ratio * ms, "ratio": ratio, "same_bits": True})
    return [{"users": users, "prompt": prompt, "silent": False, **row} for row in rows]


def results() -> Results:
    request = {"users": 32, "prompt": 64, "answer": 64, "ttft_ms": 20.0}
    asked = {**request, "design": "partitioned", "processes": 8, "tokens_per_s": 140.0, "ratio": 140 / 180}
    hidden = {"prompt": 64, "ms": 5.0, "same_bits": True}
    trials: dict[str, dict[str, Any]] = {
        "steps": {"bytes_per_second": RATE, "steps": [row for load in LOADS for row in steps(*load)]},
        "requests": {"requests": [{**request, "design": "open", "tokens_per_s": 180.0}, asked]},
        "obfuscated": {
            "obfuscated": [
                {**hidden, "users": 8, "lambda": 8, "ratio": 1.07},
                {**hidden, "users": 1, "lambda": 64, "ratio": 1.41},
                {"users": 8, "prompt": 64, "lambda": 64, "not_offered": "too many rows"},
            ]
        },
        "weights": {"weights": [], "took_s": 1.0},
    }
    return Results(Plan(), "GPU", trials=trials)


def verdicts(made: Results) -> dict[str, bool]:
    return {row["name"]: row["met"] for row in made.document()["targets"]}


def test_every_target_has_an_honest_verdict() -> None:
    met = verdicts(results())
    assert met["partitioned over open, a step, 64 × 64"] and met["partitioned over open, a step, 1 × 2,048"]
    assert met["open over the floor, 8 × 64"] and met["obfuscated, λ = 8, 8 × 64, over λ = 0"]
    assert not met["throughput of partitioned over open, 32 × 64/64"], "0.78"
    assert not met["one of eight attention processes beside its users' KV, MB"]
    assert not met["obfuscated, λ = 64, 1 × 64, over λ = 0"]
    assert not any(verdicts(Results(Plan(), "GPU")).values()), "what was not measured was not met"


def test_the_default_isolation_is_what_the_target_is_about() -> None:
    made = results()
    for row in made.trials["steps"]["steps"]:
        if row.get("processes") == 8 and "ratio" in row and (row["users"], row["prompt"]) == (32, 64):
            row["ratio"] = 1.3
    met = verdicts(made)
    assert not met["partitioned over open, a step, 32 × 64"] and met["partitioned over open, a step, 8 × 64"]


def test_steps_say_how_far_they_are_from_the_floor_of_the_same_run() -> None:
    document = json.loads(json.dumps(results().document()))
    beside = [row for row in document["steps"] if row.get("design") == "open"]
    assert beside and all(row["to_floor"] == pytest.approx(1.2, abs=1e-3) for row in beside)
    assert document["trials"]["weights"]["took_s"] == 1.0 and "steps" not in document["trials"]["steps"]


def test_tables_show_settings_and_bits(tmp_path: Path) -> None:
    made = results()
    shown, whole, hidden, _ = tables(made.document())
    assert next(row for row in shown.rows if row[0] == "32 × 64")[3:] == ["1.04", "1.02", "the same"]
    assert len(whole.rows) == 2 and [row[3:] for row in hidden.rows] == [["1.07", "the same"], ["1.41", "the same"]]
    for row in made.trials["steps"]["steps"]:
        row |= {"same_bits": False} if "same_bits" in row else {}
    assert tables(made.document())[0].rows[0][-1] == "OTHERS"
    [path] = draw_figures(made.document(), tmp_path, FIGURES)
    assert path.stem == "gpu-steps" and path.read_bytes().startswith(b"\x89PNG")
    empty = Results(Plan(), "GPU").document()
    assert draw_figures(empty, tmp_path, FIGURES) == [] and [table.rows for table in tables(empty)][:-1] == [[], [], []]


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
