"""The same layers on plain numbers, for calibration and quality runs. One compiled function serves all layers."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.cache.base import PromptLayer
from cloister_mpc.functions.bundle import Functions
from cloister_mpc.model.decoder import Angles, Decoder
from cloister_mpc.model.shape import ModelShape, one_hots
from cloister_mpc.model.weights import ModelWeights


class PlainModel:
    def __init__(self, shape: ModelShape, weights: ModelWeights, functions: Functions) -> None:
        self.shape = shape
        self.decoder = Decoder(shape, functions)
        self.weights = jax.tree_util.tree_map(jnp.asarray, weights)
        self.epsilons = [jnp.float32(shape.epsilon * scale * scale) for scale in shape.scales]
        self._embed = jax.jit(self.decoder.embed)
        self._prompt = jax.jit(self.decoder.prompt_layer, static_argnums=0)
        self._logits = jax.jit(self.decoder.logits)

    def columns(self, tokens: Sequence[int], wide: int, first: int) -> tuple[Array, Array]:
        """Embedded tokens (D, wide), padded on the left, and which columns hold one."""
        dealt = one_hots(self.shape, tokens, wide, first)
        places = dealt.get("places", np.zeros((0, wide), np.int32))
        embedded: tuple[Array, Array] = self._embed(self.weights.outer, dealt["coarse"], dealt["fine"], places)
        return embedded

    def angles(self, first: int, columns: int) -> Angles:
        return Angles(*map(jnp.asarray, self.shape.angles(first, columns)))

    def rescaled(self, number: int, hidden: Array) -> Array:
        scales = self.shape.scales
        return hidden * (scales[number] / scales[number - 1]) if number else hidden

    def prompt_layer(
        self, number: int, window: int, hidden: Array, present: Array, angles: Angles
    ) -> tuple[Array, PromptLayer]:
        hidden = self.rescaled(number, hidden)
        result: tuple[Array, PromptLayer] = self._prompt(
            window, self.epsilons[number], hidden, present, self.weights.layers[number], angles
        )
        return result

    def logits(self, hidden: Array) -> NDArray[np.float32]:
        """(n, V)."""
        return np.asarray(self._logits(self.weights.outer, hidden)).T
