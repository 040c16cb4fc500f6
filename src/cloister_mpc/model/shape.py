"""What is public of a model: its sizes and its kind. Parties compile their programs from this alone. Also what a
client deals by it: one-hots of its tokens, random permutations."""

import math
import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from cloister.errors import ModelUnsupported
from cloister.models.source import ModelFolder

BUCKET = 16
"""Prompts are padded on the left to a multiple of this; the bucket is all that parties learn of a prompt's length."""

FINE = 256
"""A token is dealt as two one-hots, its number // FINE and its number % FINE: 448 secrets for SmolLM2, not 49,152."""

CALM_STEP = 64  # calm neurons are counted in these, so that the count says little of the weights

Size = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class ModelShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder like Llama (rotary, RMSNorm, gated SiLU) or like GPT-2 (learned positions, LayerNorm, GELU)."""

    layers: Size
    heads: Size
    kv_heads: Size
    head_size: Size
    hidden: Size
    inner: Size
    vocabulary: Size
    positions: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]  # rows of learned positions; 0: rotary
    context: Size
    epsilon: float
    activation: Literal["silu", "gelu"]
    gated: bool
    biases: bool
    tied: bool  # one matrix serves the embedding and the head
    rotation: tuple[float, ...]  # frequencies of the rotary angles, head_size / 2; () where positions are learned
    scales: tuple[float, ...]  # of the residual stream, per layer
    calm: Annotated[int, msgspec.Meta(ge=0, le=1_000_000, multiple_of=CALM_STEP)] = 0  # the same in every layer

    def __post_init__(self) -> None:
        consistent = (
            self.heads % self.kv_heads == 0
            and len(self.scales) == self.layers
            and all(math.isfinite(scale) and scale > 0 for scale in self.scales)
            and self.calm <= (self.inner if self.gated and self.activation == "silu" else 0)
            and (len(self.rotation) * 2 == self.head_size if self.positions == 0 else not self.rotation)
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
        """Cosines and sines (columns, head_size) of positions first, first + 1, …; no columns where nothing rotates."""
        half = np.outer(np.arange(first, first + columns), np.asarray(self.rotation, dtype=np.float64))
        both = np.concatenate([half, half], axis=1)
        return np.cos(both).astype(np.float32), np.sin(both).astype(np.float32)


def bucket_of(prompt_tokens: int) -> int:
    return -(-max(prompt_tokens, 1) // BUCKET) * BUCKET


def shape_of(folder: ModelFolder) -> ModelShape:
    """The shape of the folder's model, its stream not yet scaled and no neuron called calm (calibration does both)."""
    config = folder.config
    kind = config["model_type"]
    if kind == "llama":
        return _llama(config)
    if kind == "gpt2":
        return _gpt2(config)
    raise ModelUnsupported(
        f"Models of the kind '{kind}' are not computed on shares.", hint="Choose a Llama- or GPT-2-style model."
    )


def _llama(config: dict[str, Any]) -> ModelShape:
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
        positions=0,
        context=config["max_position_embeddings"],
        epsilon=config["rms_norm_eps"],
        activation="silu",
        gated=True,
        biases=bool(config.get("attention_bias") or config.get("mlp_bias")),
        tied=bool(config.get("tie_word_embeddings")),
        rotation=_frequencies(config, size),
        scales=(1.0,) * config["num_hidden_layers"],
    )


def _gpt2(config: dict[str, Any]) -> ModelShape:
    if config.get("activation_function", "gelu_new") not in ("gelu_new", "gelu", "gelu_pytorch_tanh"):
        raise ModelUnsupported(f"The activation '{config['activation_function']}' is not computed on shares.")
    if config.get("scale_attn_by_inverse_layer_idx") or config.get("scale_attn_weights") is False:
        raise ModelUnsupported("GPT-2 with other than the usual scaling of scores is not computed on shares.")
    heads, hidden = config["n_head"], config["n_embd"]
    return ModelShape(
        layers=config["n_layer"],
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        hidden=hidden,
        inner=config.get("n_inner") or 4 * hidden,
        vocabulary=config["vocab_size"],
        positions=config["n_positions"],
        context=config["n_positions"],
        epsilon=config.get("layer_norm_epsilon", 1e-5),
        activation="gelu",
        gated=False,
        biases=True,
        tied=False,  # the embedding is centred, the head is not (see weights)
        rotation=(),
        scales=(1.0,) * config["n_layer"],
    )


def _frequencies(config: dict[str, Any], size: int) -> tuple[float, ...]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ModelUnsupported("Scaled rotary positions are not computed on shares yet.", hint="Choose another model.")
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    return tuple(float(theta ** (-i / size)) for i in range(0, size, 2))


def one_hots(shape: ModelShape, tokens: Sequence[int], columns: int, first: int = 0) -> dict[str, NDArray[np.int32]]:
    """What a client deals for its tokens, padded on the left to `columns`; `first` is the first token's position."""
    coarse = np.zeros((shape.coarse, columns), dtype=np.int32)
    fine = np.zeros((FINE, columns), dtype=np.int32)
    at = np.arange(columns - len(tokens), columns)
    numbers = np.asarray(tokens)
    coarse[numbers // FINE, at] = 1
    fine[numbers % FINE, at] = 1
    dealt = {"coarse": coarse, "fine": fine}
    if shape.positions:
        places = np.zeros((shape.positions, columns), dtype=np.int32)
        places[first + np.arange(len(tokens)), at] = 1
        dealt["places"] = places
    return dealt


def permutations(heads: int, size: int) -> NDArray[np.int32]:
    """(heads, size, size) permutation matrices, each drawn alone from the system's randomness."""
    draws = np.frombuffer(secrets.token_bytes(heads * size * 8), dtype=np.uint64).reshape(heads, size)
    rows: NDArray[np.int32] = (np.argsort(draws, axis=1)[:, :, None] == np.arange(size)).astype(np.int32)
    return rows
