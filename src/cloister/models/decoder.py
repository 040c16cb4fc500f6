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

    @abstractmethod
    def hidden(self, batch: Batch, cache: KVCache) -> torch.Tensor:
        """Run all layers, writing keys and values into the cache; the rows' last hidden states, fp32."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [rows, vocabulary] of the given hidden states, fp32."""
