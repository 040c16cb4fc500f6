"""What a loaded model offers: hidden states for a batch of rows, and logits for chosen ones.

A decoder knows weights and kernels. It does not know sequences, sampling, or where the weights' bytes came from.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from cloister.kernels.base import Kernels
from cloister.kernels.batch import Batch
from cloister.kernels.cache import CacheShape, KVCache


class Decoder(ABC):
    """A decoder-only model with rotary positions."""

    kernels: Kernels
    cache_shape: CacheShape
    queries_per_kv_head: int
    vocabulary: int
    max_context: int
    relative: bool = False
    """Whether generated tokens may be rotated from 0 on, wherever the prompt ends (see kernels.batch.Layout)."""
    scales: list[float]
    windows: list[int]
    """Of every layer's attention: what scores are multiplied by, and how far back it looks (0: to the beginning)."""

    @property
    def heads(self) -> int:
        """Query heads of a layer."""
        return self.queries_per_kv_head * self.cache_shape.kv_heads

    def turn(self, distance: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines that carry a rotated query so many positions further; empty where nothing turns."""
        return torch.empty(0), torch.empty(0)

    @abstractmethod
    def hidden(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Run all layers, writing keys and values into the cache; the rows' last hidden states, fp32."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the given hidden states, fp32."""
