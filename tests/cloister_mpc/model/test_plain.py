"""The plain twin against transformers: exact functions agree to rounding, lean ones closely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT, LEAN
from cloister_mpc.model.decoder import PlainModel
from tests.cloister_mpc.model.plain_generation import PlainGeneration, teacher_forced
from tests.cloister_mpc.model.tiny import TinyModel, some_tokens, tiny_model

FULL = CachePlan(method="full")


ROOM = 6


@pytest.fixture(scope="module")
def exact(model: TinyModel) -> PlainModel:
    """Compiled once for each shape, as `generation` is."""
    return PlainModel(model.shape, model.weights, EXACT)


@pytest.fixture(scope="module")
def generation(exact: PlainModel) -> PlainGeneration:
    """Of prompts of 17 to 32 tokens; each prefill begins anew."""
    return PlainGeneration(exact, FULL, 32, ROOM)


def test_one_pass_gives_transformers_logits(model: TinyModel, exact: PlainModel) -> None:
    tokens = some_tokens(21)
    expected = model.logits(tokens)
    lean = PlainModel(model.shape, model.weights, LEAN)
    assert np.abs(teacher_forced(exact, tokens) - expected).max() < 1e-4
    assert np.abs(teacher_forced(lean, tokens) - expected).max() < 0.1
    assert np.abs(expected).max() > 1  # the models are lively enough that the bound means something


def test_llama_with_biases_too(tmp_path: Path) -> None:
    biased, tokens = tiny_model("llama-with-biases", tmp_path), some_tokens(21)
    assert (
        np.abs(teacher_forced(PlainModel(biased.shape, biased.weights, EXACT), tokens) - biased.logits(tokens)).max()
        < 1e-4
    )


def test_steps_answer_what_one_pass_answers(model: TinyModel, generation: PlainGeneration) -> None:
    tokens, answers = some_tokens(19, seed=1), some_tokens(5, seed=2)
    expected = model.logits(tokens + answers)[len(tokens) - 1 :]
    found = [generation.prefill(tokens)[None], generation.step(0, answers[:1]), generation.step(1, answers[1:])]
    assert np.abs(np.concatenate(found) - expected).max() < 1e-4


def test_a_wrong_draft_leaves_no_trace(model: TinyModel, generation: PlainGeneration) -> None:
    tokens, answers = some_tokens(32, seed=3), some_tokens(5, seed=4)
    generation.prefill(tokens)
    generation.step(0, [answers[0], 7, 8, 9])
    found = generation.step(1, answers[1:])
    assert np.abs(found - model.logits(tokens + answers)[-4:]).max() < 1e-4


def test_padding_changes_nothing(model: TinyModel, exact: PlainModel) -> None:
    tokens = some_tokens(17, seed=6)
    padded = PlainGeneration(exact, FULL, 33, 1).prefill(tokens)
    assert np.abs(padded - model.logits(tokens)[-1]).max() < 1e-4


def test_blocks_of_a_long_prompt_see_each_other(model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister_mpc.model.decoder.BLOCK", 16)
    tokens = some_tokens(41, seed=7)
    found = teacher_forced(PlainModel(model.shape, model.weights, EXACT), tokens)
    assert np.abs(found - model.logits(tokens)).max() < 1e-4
