"""A model's matrices for shares: few, (out, in), float32; gains, 1/sqrt(d), biases, scale and order folded in."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloister.models.source import ModelFolder
from cloister_mpc.functions.activations import GATES_ARE_DIVIDED_BY, RESULTS_ARE_MULTIPLIED_BY
from cloister_mpc.model.shape import ModelShape

Matrix = NDArray[np.float32]
Weight = Any  # a matrix as it is read, or an array while a program is traced


class LayerWeights(NamedTuple):
    """One layer. `+` marks the column of biases, where the model has any. On shares, all of it is secret."""

    qkv: Weight  # ((H + 2 G) d, D+)
    out: Weight  # (D, H d+)
    up: Weight  # (2 F, D+): gate, then up (see activations)
    down: Weight  # (D, F+)
    offset: Weight  # (H, 1, 1): what a head's scores are lowered by before exp (see calibration)


class OuterWeights(NamedTuple):
    """What stands before and after the layers; (0, 0) where a model lacks the part."""

    embedding: Weight  # (V, D)
    gain: Weight  # (D, 1): the last norm's, where `tied`; else it is in the head
    head: Weight  # (V, D+), unless `tied`


class ModelWeights(NamedTuple):
    outer: OuterWeights
    layers: list[LayerWeights]

    def named(self) -> Iterator[tuple[str, Matrix]]:
        """(variable's name, matrix) for everything a provider deals; see generation for the names."""
        for part, matrix in zip(OuterWeights._fields, self.outer, strict=True):
            if matrix.size:
                yield f"w/{part}", np.asarray(matrix)
        for number, layer in enumerate(self.layers):
            for part, matrix in zip(LayerWeights._fields, layer, strict=True):
                yield f"w/{number}/{part}", np.asarray(matrix)


def read_weights(
    folder: ModelFolder, shape: ModelShape, offsets: Matrix | None = None, order: NDArray[np.intp] | None = None
) -> ModelWeights:
    """Folded for this shape. `offsets`: (layers, H), else zeros. `order`: (layers, F), calm neurons first."""
    from cloister.models.weights import open_weights

    tensors = open_weights(folder)

    def read(name: str) -> Matrix:
        matrix: Matrix = tensors[name].float().numpy()
        return matrix

    def linear(prefix: str, gain: Matrix | float = 1.0, scale: float = 1.0) -> Matrix:
        weight = read(f"{prefix}.weight")
        bias = read(f"{prefix}.bias") if f"{prefix}.bias" in tensors else np.zeros(len(weight), dtype=np.float32)
        joined: Matrix = np.concatenate([weight * gain, *[bias[:, None]] * shape.extra], axis=1) * np.float32(scale)
        return joined

    layers = []
    for number, scale in enumerate(shape.scales):
        at = f"model.layers.{number}"
        before, after = read(f"{at}.input_layernorm.weight"), read(f"{at}.post_attention_layernorm.weight")
        queries = linear(f"{at}.self_attn.q_proj", before, shape.head_size**-0.5)
        offset = np.zeros(shape.heads, np.float32) if offsets is None else offsets[number].astype(np.float32)
        own = np.arange(shape.inner) if order is None else order[number]
        # Gate and up in the units of `ordered_silu`, which saves scaling on shares.
        gate = linear(f"{at}.mlp.gate_proj", after, 1 / GATES_ARE_DIVIDED_BY)
        up = linear(f"{at}.mlp.up_proj", after, 1 / RESULTS_ARE_MULTIPLIED_BY)
        down = linear(f"{at}.mlp.down_proj", scale=scale)
        layers.append(
            LayerWeights(
                qkv=np.concatenate([queries, *(linear(f"{at}.self_attn.{part}_proj", before) for part in "kv")]),
                out=linear(f"{at}.self_attn.o_proj", scale=scale),
                up=np.concatenate([gate[own], up[own]]),
                down=down[:, [*own, *range(shape.inner, down.shape[1])]],
                offset=offset.reshape(-1, 1, 1),
            )
        )
    # The embedding is shared with the head, which must not see the first layer's scale: embed multiplies (decoder).
    gain, none = read("model.norm.weight"), np.zeros((0, 0), np.float32)
    outer = OuterWeights(
        embedding=read("model.embed_tokens.weight"),
        gain=gain[:, None] if shape.tied else none,
        head=none if shape.tied else linear("lm_head", gain),
    )
    return ModelWeights(outer, layers)
