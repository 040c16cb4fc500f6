"""SnapKV (Li et al., 2024): the last queries' attention, smoothed over neighbours, decides what is kept beside them."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from cloister.mpc.cache.base import PromptLayer, Softmax
from cloister.mpc.cache.kept import KeptCache
from cloister.mpc.cache.static import attention_received

WINDOW = 32
KERNEL = 5


@dataclass(frozen=True)
class SnapKV(KeptCache):
    def scored(self, prompt: PromptLayer, softmax: Softmax, offset: Array) -> Array:
        received = attention_received(prompt, softmax, offset)
        before = received[:, : self.prompt_tokens - self.last]
        return jnp.concatenate([smoothed(before), received[:, self.prompt_tokens - self.last :]], axis=1)


def smoothed(received: Array, kernel: int = KERNEL) -> Array:
    """(G, T): the sum over a token and its neighbours; zeros beyond the ends."""
    half = kernel // 2
    wide = jnp.pad(received, ((0, 0), (half, half)))
    return sum((wide[:, shift : shift + received.shape[1]] for shift in range(1, kernel)), wide[:, : received.shape[1]])


def snapkv(prompt_tokens: int, new_tokens: int, read: int, shuffled: bool) -> SnapKV:
    window = max(1, min(WINDOW, read // 2))
    return SnapKV(prompt_tokens, new_tokens, 0, read - window, window, window=window, shuffled=shuffled, name="snapkv")
