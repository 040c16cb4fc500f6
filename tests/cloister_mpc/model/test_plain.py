"""The plain twin against transformers: exact functions agree to rounding, lean ones closely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT, LEAN, Functions
from cloister_mpc.model.decoder import PlainModel
from tests.cloister_mpc.model.plain_generation import PlainGeneration, teacher_forced
from tests.cloister_mpc.model.tiny import TinyModel, some_tokens, tiny_model

FULL = CachePlan(method="full")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return tiny_model("llama", tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("functions", "error"), [(EXACT, 1e-4), (LEAN, 0.1)], ids=["exact", "lean"])
def test_one_pass_gives_transformers_logits(model: TinyModel, functions: Functions, error: float) -> None:
    tokens = some_tokens(21)
    expected = model.logits(tokens)
    found = teacher_forced(PlainModel(model.shape, model.weights, functions), tokens)
    assert np.abs(found - expected).max() < error
    assert np.abs(expected).max() > 1  # the models are lively enough that the bound means something


def test_llama_with_biases_too(tmp_path: Path) -> None:
    biased, tokens = tiny_model("llama-with-biases", tmp_path), some_tokens(21)
    assert (
        np.abs(teacher_forced(PlainModel(biased.shape, biased.weights, EXACT), tokens) - biased.logits(tokens)).max()
        < 1e-4
    )


def test_steps_answer_what_one_pass_answers(model: TinyModel) -> None:
    tokens, answers = some_tokens(19, seed=1), some_tokens(5, seed=2)
    expected = model.logits(tokens + answers)[len(tokens) - 1 :]
    generation = PlainGeneration(PlainModel(model.shape, model.weights, EXACT), FULL, len(tokens), 5)
    found = [generation.prefill(tokens)[None], generation.step(0, answers[:1]), generation.step(1, answers[1:])]
    assert np.abs(np.concatenate(found) - expected).max() < 1e-4


def test_a_wrong_draft_leaves_no_trace(model: TinyModel) -> None:
    tokens, answers = some_tokens(16, seed=3), some_tokens(3, seed=4)
    generation = PlainGeneration(PlainModel(model.shape, model.weights, EXACT), FULL, len(tokens), 6)
    generation.prefill(tokens)
    generation.step(0, [answers[0], 7, 8])
    found = generation.step(1, answers[1:])
    assert np.abs(found - model.logits(tokens + answers)[-2:]).max() < 1e-4


def test_padding_changes_nothing(model: TinyModel) -> None:
    tokens = some_tokens(17, seed=6)
    plain = PlainModel(model.shape, model.weights, EXACT)
    padded = PlainGeneration(plain, FULL, 33, 1).prefill(tokens)
    assert np.abs(padded - model.logits(tokens)[-1]).max() < 1e-4


def test_blocks_of_a_long_prompt_see_each_other(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_mpc.model.decoder.BLOCK", 16)
    tokens = some_tokens(41, seed=7)
    found = teacher_forced(PlainModel(model.shape, model.weights, EXACT), tokens)
    assert np.abs(found - model.logits(tokens)).max() < 1e-4
