"""What kernels compute with: packed weights, layers, angles of rotation, and how to draw a token. Plain data."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from cloister.errors import ModelCorrupt

Gate = Literal["silu", "gelu_tanh"]
GATE_ROWS = 16
LEAST = 2.0**-100  # as the largest magnitude of a row


@dataclass(frozen=True, slots=True)
class Packed:
    """With a gate, the layer gives act(x·G) × (x·U). int8 weights have a scale for each column."""

    data: torch.Tensor
    columns: int
    k: int
    bias: torch.Tensor | None = None
    gate: Gate | None = None
    scale: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return self.columns // 2 if self.gate else self.columns


@dataclass(frozen=True, slots=True)
class LayerShape:
    heads: int
    kv_heads: int
    dim: int
    rotary: int
    epsilon: float
    scale: float
    window: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One pre-norm decoder layer with gated MLP: the Llama family."""

    index: int
    shape: LayerShape
    attention_norm: torch.Tensor
    qkv: Packed
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    out: Packed
    mlp_norm: torch.Tensor
    gate_up: Packed
    down: Packed


@dataclass(frozen=True, slots=True)
class Beginning:
    """A model's embedding and its first layers, which vaults compute alone; angles of all positions."""

    embedding: Packed
    layers: Sequence[Layer]
    cosine: torch.Tensor
    sine: torch.Tensor


@dataclass(frozen=True, slots=True)
class Angles:
    """Cosines and sines of the rows' positions, [rows, rotary], and of the spans' rotations, [spans, rotary]."""

    cosine: torch.Tensor
    sine: torch.Tensor
    rotation_cosine: torch.Tensor
    rotation_sine: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Filters are off where top_k is the row's width, top_p 1, min_p 0."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    u: list[float]


DrawRows = Callable[[torch.Tensor, Draws], torch.Tensor]
MaskRow = Callable[[torch.Tensor, NDArray[np.uint8]], None]
"""Leaves of a row of logits what has a bit, the lowest first; the bits are whole words of 64 tokens."""


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """-127 … 127 and a scale for each row, whose largest magnitude becomes 127."""
    weight = weight.float()
    scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    if not bool(scale.isfinite().all()):
        raise ModelCorrupt("A weight is not a finite number.", hint="Fetch or convert the model again.")
    return (weight / scale[:, None]).round().to(torch.int8), scale


def quantised_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What int8 weights multiply, as cpu/int8.h defines it: integers of 16 bits, and a scale for each row."""
    top = x.abs().amax(1, keepdim=True)
    finite, top, largest = top.isfinite(), top.clamp(min=LEAST), torch.tensor(32512.0)
    values = (x * torch.div(largest, top)).round()  # `32512 / top` would be its reciprocal times 32512
    return torch.where(finite, values, 0), torch.where(finite, torch.div(top, largest), torch.nan)


def interleave_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in alternate groups of 16, so that one panel of a product holds both."""
    k = gate.shape[1]
    pairs = (gate.view(-1, GATE_ROWS, k), up.view(-1, GATE_ROWS, k))
    return torch.cat(pairs, dim=1).reshape(-1, k)
