from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.errors import ModelUnsupported
from cloister.models.source import ModelFolder
from cloister_mpc.model.shape import BUCKET, FINE, ModelShape, bucket_of, one_hots, permutations, shape_of
from tests.cloister_mpc.local import SHAPE
from tests.cloister_mpc.model.tiny import CONFIGS


def folder(kind: str, **other: object) -> ModelFolder:
    return ModelFolder("tiny", Path(), CONFIGS[kind].to_dict() | other)


def test_biases_are_part_of_the_shape() -> None:
    plain, biased = shape_of(folder("llama")), shape_of(folder("llama-with-biases"))
    assert plain.heads // plain.kv_heads == 2 and (plain.extra, biased.extra) == (0, 1)


@pytest.mark.parametrize(
    "other",
    [
        {"model_type": "mamba"},
        {"model_type": "gpt2"},
        {"hidden_act": "relu"},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0}},
    ],
)
def test_what_we_would_compute_wrongly_is_refused(other: dict[str, object]) -> None:
    with pytest.raises(ModelUnsupported):
        shape_of(folder("llama", **other))


@given(st.integers(-2000, 2000), st.integers(1, 4))
def test_angles_of_neighbours_differ_by_one_step(first: int, columns: int) -> None:
    cosine, sine = SHAPE.angles(first, columns)
    again, _ = SHAPE.angles(first + columns - 1, 1)
    assert np.allclose(cosine[-1], again[0], atol=1e-6)
    assert np.allclose(cosine**2 + sine**2, 1, atol=1e-6)


@given(st.integers(1, 5000))
def test_buckets_hold_their_prompt_and_little_more(tokens: int) -> None:
    assert 0 <= bucket_of(tokens) - tokens < BUCKET
    assert bucket_of(tokens) % BUCKET == 0


def test_a_shape_survives_the_wire_and_a_contradictory_one_does_not() -> None:
    sent = msgspec.json.encode(SHAPE)
    assert msgspec.json.decode(sent, type=ModelShape) == SHAPE
    for wrong in ({"heads": 3, "kv_heads": 2}, {"scales": [1.0, 1.0]}, {"rotation": []}, {"scales": [0.0]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(SHAPE) | wrong), type=ModelShape)


def test_calm_neurons_are_counted_in_steps_and_are_not_more_than_there_are() -> None:
    wide = msgspec.structs.replace(SHAPE, inner=200)
    assert msgspec.json.decode(msgspec.json.encode(wide), type=ModelShape).calm == 0
    for right in (64, 192):
        sent = msgspec.json.encode(msgspec.to_builtins(wide) | {"calm": right})
        assert msgspec.json.decode(sent, type=ModelShape).calm == right
    for wrong in ({"calm": 65}, {"calm": 256}, {"calm": -64}, {"calm": [64]}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(wide) | wrong), type=ModelShape)


@given(st.binary(max_size=200))
def test_a_shape_from_garbage_is_refused(garbage: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError)):
        msgspec.json.decode(garbage, type=ModelShape)


@given(st.lists(st.integers(0, SHAPE.vocabulary - 1), min_size=1, max_size=8), st.integers(0, 4))
def test_two_one_hots_name_each_token_and_padding_is_zero(tokens: list[int], padding: int) -> None:
    dealt = one_hots(SHAPE, tokens, len(tokens) + padding)
    coarse, fine = dealt["coarse"], dealt["fine"]
    assert not coarse[:, :padding].any() and not fine[:, :padding].any()
    both = (coarse[:, None] * fine[None]).reshape(-1, coarse.shape[1])[:, padding:]
    assert (both.sum(axis=0) == 1).all()
    assert both.argmax(axis=0).tolist() == tokens
    assert fine.shape[0] == FINE


@given(st.integers(1, 3), st.integers(1, 9))
def test_permutations_permute(heads: int, size: int) -> None:
    drawn = permutations(heads, size)
    assert drawn.shape == (heads, size, size)
    assert (drawn.sum(axis=1) == 1).all() and (drawn.sum(axis=2) == 1).all()


def test_permutations_are_drawn_anew() -> None:
    one, other = permutations(1, 32), permutations(1, 32)
    assert (one != other).any()
