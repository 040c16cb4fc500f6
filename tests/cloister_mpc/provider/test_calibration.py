"""Scales and offsets keep a model's numbers within what the lean functions were made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig

from cloister.models.source import open_folder
from cloister_mpc.functions.bundle import EXACT, LEAN
from cloister_mpc.model.decoder import PlainModel
from cloister_mpc.model.shape import shape_of
from cloister_mpc.provider.calibration import LARGEST_MEAN_SQUARE, _calm, _offsets, _scales, calibrate, prepare
from tests.cloister_mpc.model.plain_generation import teacher_forced
from tests.cloister_mpc.model.tiny import CONFIGS, TinyModel, some_tokens
from tests.models.architectures import save_random_model


def test_scales_fall_only_where_they_must() -> None:
    squares = np.array([[20, 0.01], [200, 1], [1300, 10], [1200, 30], [1.1e6, 40], [1.1e6, 900]])
    scales = _scales(squares)
    assert scales[0] == 8.0 and list(scales) == sorted(scales, reverse=True)
    assert scales[2] == scales[3] and scales[4] == scales[5]
    assert all(largest * scale**2 <= LARGEST_MEAN_SQUARE for (largest, _), scale in zip(squares, scales, strict=True))


def test_an_embedding_is_never_scaled_down() -> None:
    assert _scales(np.array([[1e9, 1e6]])) == (1.0,)


def test_offsets_leave_equal_room_above_and_below() -> None:
    highest, lowest = np.array([[10.0]]), np.array([[2.0]])
    offset = float(_offsets(highest, lowest)[0, 0])
    assert 12 - (10 - offset) == pytest.approx((2 - offset) + 6)


def test_a_wild_first_layer_is_tamed_and_the_answers_stay(tmp_path: Path) -> None:
    """A stream whose squares fixed point could not hold: scaled, it gives the same logits."""
    reference = save_random_model(tmp_path, CONFIGS["llama"])
    reference.model.layers[1].mlp.down_proj.weight.data.mul_(3000)
    reference.save_pretrained(tmp_path)
    tokens = some_tokens(20)
    folder = open_folder(tmp_path, "tiny")
    shape, weights = prepare(folder, [some_tokens(32, seed=1)])
    assert shape.scales[1] < shape.scales[0]
    expected = TinyModel(reference, shape, weights).logits(tokens)
    found = teacher_forced(PlainModel(shape, weights, EXACT), tokens)
    assert np.abs(found - expected).max() < 1e-3


def test_a_text_ends_where_the_models_context_does(tmp_path: Path) -> None:
    save_random_model(tmp_path, LlamaConfig(**CONFIGS["llama"].to_dict() | {"max_position_embeddings": 64}))
    folder, long = open_folder(tmp_path, "tiny"), some_tokens(100, seed=2)
    assert shape_of(folder).context == 64
    found, expected = calibrate(folder, [long]), calibrate(folder, [long[:64]])
    assert found.scales == expected.scales and np.array_equal(found.offsets, expected.offsets)


def test_as_many_gates_are_calm_in_every_layer() -> None:
    assert _calm(np.array([[1.0] * 200, [1.0] * 130 + [14.0] * 70])) == 128
    assert _calm(np.array([[1.0] * 200, [14.0] * 200])) == 0


def test_wild_gates_come_last_and_the_answers_stay(tmp_path: Path) -> None:
    """Neurons with gates far out of a polynomial's range, some of which our text hardly shows: found, given tails."""
    deeper = LlamaConfig(**CONFIGS["llama"].to_dict() | {"num_hidden_layers": 4})
    reference = save_random_model(tmp_path, deeper)
    for each in reference.model.layers:
        each.mlp.gate_proj.weight.data[[0, 7]] *= 10
    reference.save_pretrained(tmp_path)
    tokens = some_tokens(20)
    shape, weights = prepare(open_folder(tmp_path, "tiny"), [some_tokens(32, seed=1)])
    assert shape.calm == 64
    model = TinyModel(reference, shape, weights)
    rows = np.linalg.norm(weights.layers[2].up[: shape.inner], axis=1)
    assert sorted(rows.argsort()[-2:]) == [shape.inner - 2, shape.inner - 1]
    assert np.abs(teacher_forced(PlainModel(shape, weights, EXACT), tokens) - model.logits(tokens)).max() < 1e-3
    assert np.abs(teacher_forced(PlainModel(shape, weights, LEAN), tokens) - model.logits(tokens)).max() < 0.02
