"""The contract of a loaded model: what a decoder offers, and the named parts it is built from.

A decoder knows weights and their device: hidden states for a batch of rows, and logits for chosen ones. It does not
know sequences or sampling, nor whether its parts are packed now from the model's files or were packed before into a
sealed memory file (`sealed.py`). Parts know names, not architectures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import torch

from cloister.compute.base import AttentionShape, Device, Kernels, KVCache, LinkAsker
from cloister.compute.layer import Gate, Packed, interleave_gate
from cloister.compute.layout import Batch
from cloister.errors import ModelCorrupt


class Decoder(AttentionShape, ABC):
    """A decoder-only model with rotary positions."""

    device: Device
    vocabulary: int
    max_context: int
    relative: bool = False
    """Whether generated tokens may be rotated from 0 on, wherever the prompt ends (see compute.layout.Layout)."""

    @property
    def kernels(self) -> Kernels:
        return self.device.kernels

    @abstractmethod
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        """Run all layers, writing keys and values into the cache; the rows' last hidden states, fp32."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the given hidden states, fp32."""


class Parts(ABC):
    """Named parts. Layers are named without the `.weight` and `.bias` of their tensors."""

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name, alone or as a weight of a product."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """The tensor, contiguous; floating point as fp32. Not to be written to."""

    @abstractmethod
    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        """One product of exactly these tensors; with a gate, the two weights' columns alternate."""

    @abstractmethod
    def leftover(self) -> set[str]:
        """Names of tensors that nobody has asked for so far."""

    def optional(self, name: str) -> torch.Tensor | None:
        return self.tensor(name) if self.has(name) else None

    def joined(self, *layers: str, gate: Gate | None = None) -> Packed:
        """One product of linear layers over the same input, their columns in this order, with any biases."""
        biases = [f"{layer}.bias" for layer in layers]
        return self.product([f"{layer}.weight" for layer in layers], biases if any(map(self.has, biases)) else (), gate)

    def gated(self, gate: str, up: str, act: Gate) -> Packed:
        """The two layers of a gated MLP as one product act(x·G) × (x·U)."""
        return self.joined(gate, up, gate=act)


class RawParts(Parts):
    """Packs what is asked for from the model's own tensors. Keeps nothing."""

    def __init__(self, weights: Mapping[str, torch.Tensor], kernels: Kernels) -> None:
        self._weights = weights
        self._kernels = kernels
        self._asked: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._weights

    def tensor(self, name: str) -> torch.Tensor:
        found = self._raw(name)
        return (found.float() if found.is_floating_point() else found).contiguous()

    def product(self, weights: Sequence[str], biases: Sequence[str], gate: Gate | None = None) -> Packed:
        join: Callable[..., torch.Tensor] = _joined if gate is None else interleave_gate
        weight = join(*(self._raw(name) for name in weights))
        bias = join(*(self._raw(name)[:, None] for name in biases))[:, 0] if biases else None
        return self._kernels.pack(weight, bias, gate)

    def leftover(self) -> set[str]:
        return set(self._weights) - self._asked

    def _raw(self, name: str) -> torch.Tensor:
        try:
            found = self._weights[name]
        except KeyError:
            raise lacking(name) from None
        self._asked.add(name)
        return found


def _joined(*rows: torch.Tensor) -> torch.Tensor:
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def lacking(name: str) -> ModelCorrupt:
    return ModelCorrupt(f"The model's weights lack '{name}'.", hint="Fetch or convert the model again.")


def misshapen(name: str) -> ModelCorrupt:
    return ModelCorrupt(
        f"'{name}' has another shape than the model's configuration says.", hint="Fetch or convert the model again."
    )
