"""Scales and offsets keep a model's numbers within what the lean functions were made for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cloister.models.source import open_folder
from cloister.mpc.calibration import LARGEST_MEAN_SQUARE, _offsets, _scales, prepare
from cloister.mpc.functions.bundle import NAIVE
from cloister.mpc.twin import PlainModel
from tests.models.architectures import save_random_model
from tests.mpc.tiny import CONFIGS, some_tokens


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
    from tests.mpc.tiny import TinyModel

    expected = TinyModel(reference, shape, weights).logits(tokens)
    found = PlainModel(shape, weights, NAIVE).teacher_forced(tokens)
    assert np.abs(found - expected).max() < 1e-3
