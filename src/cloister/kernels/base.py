"""The contract of all kernels. Every result row depends on its own inputs alone, bit for bit.

Activations are fp32 in both precisions; weights and cache are in the precision of the kernels (bf16 inputs to a
product are rounded once, sums stay in fp32).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from cloister.kernels.batch import Batch, RemoteRows
from cloister.kernels.cache import KVCache
from cloister.kernels.structs import AskingStruct

Gate = Literal["silu", "gelu_tanh"]
GATE_ROWS = 16


@dataclass(frozen=True, slots=True)
class Packed:
    """A linear layer's weight in the kernels' own layout. With a gate, the layer gives act(x·G) × (x·U).

    An int8 weight stands for itself times the scale of its column.
    """

    data: torch.Tensor
    columns: int
    k: int
    bias: torch.Tensor | None = None
    gate: Gate | None = None
    scale: torch.Tensor | None = None

    @property
    def width(self) -> int:
        """How many floats a row of the result has."""
        return self.columns // 2 if self.gate else self.columns


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The numbers of one decoder layer."""

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
class Angles:
    """Cosines and sines of the rows' positions, [rows, rotary], and of the strips' turns, [strips, rotary]."""

    cosine: torch.Tensor
    sine: torch.Tensor
    turn_cosine: torch.Tensor
    turn_sine: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """How to draw one token from each row: top_k is the row's width where it is off, top_p 1, min_p 0."""

    temperature: list[float]
    top_k: list[int]
    top_p: list[float]
    min_p: list[float]
    u: list[float]


DrawRows = Callable[[torch.Tensor, Draws], torch.Tensor]


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight as int8 and a scale for each of its rows; a row's largest magnitude becomes 127."""
    weight = weight.float()
    scale = (weight.abs().amax(1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
    return (weight / scale[:, None]).round().to(torch.int8), scale


def interleave_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Rows of gate and up in alternate groups of 16, so that one panel of a product holds both."""
    k = gate.shape[1]
    pairs = (gate.view(-1, GATE_ROWS, k), up.view(-1, GATE_ROWS, k))
    return torch.cat(pairs, dim=1).reshape(-1, k)


class Asks(Protocol):
    """Carries questions to vaults: what the kernels need of the link's service side."""

    def begin(self, remotes: Sequence[RemoteRows]) -> AskingStruct:
        """The structure through which one step's rows ask."""


PHASES = ("query", "key_value", "output_attention", "waiting", "merge", "rest")
"""Where a partitioned step's time goes (Petridish, Figure 7)."""


class Kernels(ABC):
    """What a decoder needs computed."""

    name: str
    dtype: torch.dtype
    asks: Asks | None = None
    """How rows reach parts of their prompts that are in vaults; None where these kernels cannot."""

    def start_team(self, threads: int) -> int:
        """Start the threads that compute, where there are any (0 asks for one a core); how many compute now."""
        return 1

    def use_cores(self, cores: int) -> None:
        """Compute on so many of the team's threads at most, until told otherwise."""
        return None

    def take_short_turns(self) -> None:
        """The calling thread will wake vaults at every layer: let those it wakes wait until it has woken all."""
        return None

    @property
    def seconds(self) -> dict[str, float]:
        """Time spent so far in each phase of the layers; empty where it is not measured."""
        return {}

    @property
    def draw_rows(self) -> DrawRows | None:
        """A way to draw a token from each row of logits, where these kernels have one of their own."""
        return None

    @abstractmethod
    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None = None, gate: Gate | None = None) -> Packed:
        """The weight [columns, k] in the kernels' layout; a gated one is interleaved already."""

    @abstractmethod
    def embed(self, packed: Packed, tokens: torch.Tensor) -> torch.Tensor:
        """Rows of the packed matrix, as fp32."""

    @abstractmethod
    def linear(self, x: torch.Tensor, packed: Packed, add_to: torch.Tensor | None = None) -> torch.Tensor:
        """x · Wᵀ + bias, through the gate if there is one; with `add_to`, added to it in place."""

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """RMSNorm over the last dimension."""

    @abstractmethod
    def store(self, keys: torch.Tensor, values: torch.Tensor, layer: int, batch: Batch, cache: KVCache) -> None:
        """Write the rows' keys and values [rows, kv heads, dim] into their cache slots."""

    @abstractmethod
    def attention(
        self,
        q: torch.Tensor,
        layer: int,
        batch: Batch,
        cache: KVCache,
        scale: float,
        window: int = 0,
        angles: Angles | None = None,
    ) -> torch.Tensor:
        """Causal attention of q [rows, heads, dim] over each row's own segments, merged: [rows, heads × dim].

        `angles` may be left out where no strip is turned.
        """

    @abstractmethod
    def before_attention(
        self, layer: Layer, x: torch.Tensor, angles: Angles, batch: Batch, cache: KVCache
    ) -> torch.Tensor:
        """Norm, project, rotate; store keys and values; return q [rows, heads, dim]."""

    @abstractmethod
    def after_attention(self, layer: Layer, x: torch.Tensor, attended: torch.Tensor) -> None:
        """Output projection and MLP, each added to the residual stream x in place."""

    def run_layers(
        self, layers: Sequence[Layer], x: torch.Tensor, angles: Angles, batch: Batch, cache: KVCache
    ) -> None:
        """All layers over the residual stream x, in place."""
        for layer in layers:
            q = self.before_attention(layer, x, angles, batch, cache)
            attended = self.attention(q, layer.index, batch, cache, layer.shape.scale, layer.shape.window, angles)
            self.after_attention(layer, x, attended)
