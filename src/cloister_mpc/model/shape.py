"""What is public of a model: sizes and kind, from which parties compile and clients deal one-hots, permutations."""

import math
import secrets
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import ModelUnsupported
from cloister.models.source import ModelFolder
from cloister_mpc.config import KIND

BUCKET = 16
"""Prompts are padded on the left to a multiple of this; the bucket is all that parties learn of a prompt's length."""

FINE = 256
"""A token is dealt as two one-hots, its number // FINE and its number % FINE: 448 secrets for SmolLM2, not 49,152."""

CALM_STEP = 64  # calm neurons are counted in these, so that the count says little of the weights

Size = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder like Llama: rotary positions, RMSNorm, gated SiLU."""

    layers: Size
    heads: Size
    kv_heads: Size
    head_size: Size
    hidden: Size
    inner: Size
    vocabulary: Size
    context: Size
    epsilon: float
    biases: bool
    tied: bool  # one matrix serves the embedding and the head
    rotation: tuple[float, ...]  # frequencies of the rotary angles, head_size / 2
    scales: tuple[float, ...]  # of the residual stream, per layer
    calm: Annotated[int, msgspec.Meta(ge=0, le=1_000_000, multiple_of=CALM_STEP)] = 0  # the same in every layer

    def __post_init__(self) -> None:
        consistent = (
            self.heads % self.kv_heads == 0
            and len(self.scales) == self.layers
            and all(math.isfinite(scale) and scale > 0 for scale in self.scales)
            and self.calm <= self.inner
            and len(self.rotation) * 2 == self.head_size
        )
        if not consistent:
            raise ValueError("the sizes of the model contradict each other")

    @property
    def coarse(self) -> int:
        return -(-self.vocabulary // FINE)

    @property
    def extra(self) -> int:
        """Rows appended to every matrix's input: one where there are biases, which are then the last column."""
        return int(self.biases)

    def angles(self, first: int, columns: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Cosines and sines (columns, head_size) of positions first, first + 1, …"""
        half = np.outer(np.arange(first, first + columns), np.asarray(self.rotation, dtype=np.float64))
        both = np.concatenate([half, half], axis=1)
        return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def bucket_of(prompt_tokens: int) -> int:
    return -(-max(prompt_tokens, 1) // BUCKET) * BUCKET


def shape_of(folder: ModelFolder) -> ModelShape:
    """The shape of the folder's model, its stream not yet scaled and no neuron called calm (calibration does both)."""
    config = folder.config
    if config["model_type"] != KIND:
        raise ModelUnsupported(
            f"Models of the kind '{config['model_type']}' are not computed on shares.",
            hint="Choose a Llama-style model.",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise ModelUnsupported(f"The activation '{config['hidden_act']}' is not computed on shares.")
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    size = config.get("head_dim") or hidden // heads
    return ModelShape(
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=size,
        hidden=hidden,
        inner=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        biases=bool(config.get("attention_bias") or config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings")),
        rotation=_frequencies(config, size),
        scales=(1.0,) * config["num_hidden_layers"],
    )


def _frequencies(config: dict[str, Any], size: int) -> tuple[float, ...]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ModelUnsupported("Scaled rotary positions are not computed on shares yet.", hint="Choose another model.")
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    return tuple(float(theta ** (-i / size)) for i in range(0, size, 2))


def one_hots(shape: ModelShape, tokens: Sequence[int], columns: int) -> dict[str, NDArray[np.int32]]:
    """What a client deals for its tokens, padded on the left to `columns`."""
    coarse = np.zeros((shape.coarse, columns), dtype=np.int32)
    fine = np.zeros((FINE, columns), dtype=np.int32)
    at = np.arange(columns - len(tokens), columns)
    numbers = np.asarray(tokens)
    coarse[numbers // FINE, at] = 1
    fine[numbers % FINE, at] = 1
    return {"coarse": coarse, "fine": fine}


def permutations(heads: int, size: int) -> NDArray[np.int32]:
    """(heads, size, size) permutation matrices, each drawn alone from the system's randomness."""
    draws = np.frombuffer(secrets.token_bytes(heads * size * 8), dtype=np.uint64).reshape(heads, size)
    rows: NDArray[np.int32] = (np.argsort(draws, axis=1)[:, :, None] == np.arange(size)).astype(np.int32)
    return rows
