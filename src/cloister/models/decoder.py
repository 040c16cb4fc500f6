"""What a loaded model offers: hidden states for a batch of rows, and logits for chosen ones.

A decoder knows weights and the device they are computed on. It does not know sequences, sampling, or where the
weights' bytes came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from cloister.compute.base import CacheShape, Device, Kernels, KVCache, LinkAsker
from cloister.compute.layout import Batch


class Decoder(ABC):
    """A decoder-only model with rotary positions."""

    device: Device
    cache_shape: CacheShape
    queries_per_kv_head: int
    vocabulary: int
    max_context: int
    relative: bool = False
    """Whether generated tokens may be rotated from 0 on, wherever the prompt ends (see compute.layout.Layout)."""
    scales: list[float]
    windows: list[int]
    """Of every layer's attention: what scores are multiplied by, and how far back it looks (0: to the beginning)."""

    @property
    def kernels(self) -> Kernels:
        """The device's own."""
        return self.device.kernels

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.queries_per_kv_head * self.cache_shape.kv_heads

    def rotation(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that carry a rotated query so many positions further; empty where nothing is rotated."""
        return torch.empty(0), torch.empty(0)

    @abstractmethod
    def hidden(self, batch: Batch, cache: KVCache, asker: LinkAsker | None = None) -> torch.Tensor:
        """Run all layers, writing keys and values into the cache; the rows' last hidden states, fp32.

        `asker` reaches the vaults that hold parts of rows' prompts (Batch.remotes).
        """

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the given hidden states, fp32."""
