"""A model's matrices as programs on shares want them: few, folded, (out, in), float32. Folded in: norms' gains,
1/sqrt(d), biases as a last column, the stream's scale, the order of neurons; LayerNorm is RMSNorm on a centred
stream. Imports no torch except to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloister.models.source import ModelFolder
from cloister_mpc.functions.activations import GATES_ARE_DIVIDED_BY, RESULTS_ARE_MULTIPLIED_BY
from cloister_mpc.model.shape import ModelShape

if TYPE_CHECKING:
    import torch

Matrix = NDArray[np.float32]
Weight = Any  # a matrix as it is read, or an array while a program is traced


class LayerWeights(NamedTuple):
    """One layer. `+` marks the column of biases, where the model has any. On shares, all of it is secret."""

    qkv: Weight  # ((H + 2 G) d, D+)
    out: Weight  # (D, H d+)
    up: Weight  # (2 F, D+): gate, then up (see `_ordered`); or (F, D+) where nothing gates
    down: Weight  # (D, F+)
    offset: Weight  # (H, 1, 1): what a head's scores are lowered by before exp (see calibration)


class OuterWeights(NamedTuple):
    """What stands before and after the layers; arrays of no rows where a model lacks the part."""

    embedding: Weight  # (V, D)
    places: Weight  # (positions, D): learned positions
    gain: Weight  # (D, 1): the last norm's, where `tied`; else it is in the head
    head: Weight  # (V, D+), or (0, 0) where `tied`


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

    parts = _llama if shape.positions == 0 else _gpt2
    if offsets is None:
        offsets = np.zeros((shape.layers, shape.heads), dtype=np.float32)
    weights = parts(_Reader(open_weights(folder)), shape, offsets.astype(np.float32))
    if not shape.calm:
        return weights
    if order is None:
        order = np.tile(np.arange(shape.inner), (shape.layers, 1))
    return weights._replace(layers=[_ordered(layer, own) for layer, own in zip(weights.layers, order, strict=True)])


def _ordered(layer: LayerWeights, order: NDArray[np.intp]) -> LayerWeights:
    """Neurons in this order; gate and up in the units of `ordered_silu`, which saves scaling on shares."""
    inner = len(order)
    gate, up = layer.up[order], layer.up[order + inner]
    bias = np.arange(inner, layer.down.shape[1])
    return layer._replace(
        up=np.concatenate([gate / np.float32(GATES_ARE_DIVIDED_BY), up / np.float32(RESULTS_ARE_MULTIPLIED_BY)]),
        down=layer.down[:, np.concatenate([order, bias])],
    )


class _Reader:
    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        # GPT-2's files name tensors with or without this, depending on which class saved them.
        self._tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}

    def __call__(self, name: str) -> Matrix:
        matrix: Matrix = self._tensors[name].float().numpy()
        return matrix

    def __contains__(self, name: str) -> bool:
        return name in self._tensors


def _llama(read: _Reader, shape: ModelShape, offsets: Matrix) -> ModelWeights:
    def linear(prefix: str, gain: Matrix | float = 1.0, scale: float = 1.0) -> Matrix:
        weight = read(f"{prefix}.weight")
        bias = read(f"{prefix}.bias") if f"{prefix}.bias" in read else np.zeros(len(weight), dtype=np.float32)
        biases = [bias[:, None]] * shape.extra
        joined: Matrix = np.concatenate([weight * gain, *biases], axis=1) * np.float32(scale)
        return joined

    layers = []
    for number, scale in enumerate(shape.scales):
        at = f"model.layers.{number}"
        before, after = read(f"{at}.input_layernorm.weight"), read(f"{at}.post_attention_layernorm.weight")
        queries = linear(f"{at}.self_attn.q_proj", before, shape.head_size**-0.5)
        rest = [linear(f"{at}.self_attn.{part}_proj", before) for part in "kv"]
        layers.append(
            LayerWeights(
                qkv=np.concatenate([queries, *rest]),
                out=linear(f"{at}.self_attn.o_proj", scale=scale),
                up=np.concatenate([linear(f"{at}.mlp.{part}_proj", after) for part in ("gate", "up")]),
                down=linear(f"{at}.mlp.down_proj", scale=scale),
                offset=offsets[number].reshape(-1, 1, 1),
            )
        )
    # The embedding is shared with the head, which must not see the first layer's scale: embed multiplies (programs).
    gain = read("model.norm.weight")
    head = np.zeros((0, 0), np.float32) if shape.tied else linear("lm_head", gain)
    outer = OuterWeights(
        embedding=read("model.embed_tokens.weight"),
        places=np.zeros((0, 0), np.float32),
        gain=gain[:, None] if shape.tied else np.zeros((0, 0), np.float32),
        head=head,
    )
    return ModelWeights(outer, layers)


def _gpt2(read: _Reader, shape: ModelShape, offsets: Matrix) -> ModelWeights:
    def centred(matrix: Matrix) -> Matrix:
        moved: Matrix = matrix - matrix.mean(axis=0, keepdims=True)
        return moved

    def linear(prefix: str, norm: str | None = None) -> Matrix:
        weight, bias = read(f"{prefix}.weight").T, read(f"{prefix}.bias")  # GPT-2 keeps (in, out)
        if norm is not None:
            bias = bias + weight @ read(f"{norm}.bias")
            weight = weight * read(f"{norm}.weight")
        return np.concatenate([weight, bias[:, None]], axis=1)

    layers = []
    for number, scale in enumerate(shape.scales):
        at = f"h.{number}"
        qkv = linear(f"{at}.attn.c_attn", f"{at}.ln_1")
        qkv[: shape.heads * shape.head_size] *= shape.head_size**-0.5
        layers.append(
            LayerWeights(
                qkv=qkv,
                out=centred(linear(f"{at}.attn.c_proj")) * np.float32(scale),
                up=linear(f"{at}.mlp.c_fc", f"{at}.ln_2"),
                down=centred(linear(f"{at}.mlp.c_proj")) * np.float32(scale),
                offset=offsets[number].reshape(-1, 1, 1),
            )
        )
    tokens = read("wte.weight")
    last = read("lm_head.weight") if "lm_head.weight" in read else tokens
    outer = OuterWeights(
        embedding=centred(tokens.T).T,
        places=centred(read("wpe.weight").T).T,
        gain=np.zeros((0, 0), np.float32),
        head=np.concatenate([last * read("ln_f.weight"), (last @ read("ln_f.bias"))[:, None]], axis=1),
    )
    return ModelWeights(outer, layers)
