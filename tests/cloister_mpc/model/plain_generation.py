"""What a generation on shares would answer with numbers of unlimited precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles
from cloister_mpc.cache.methods import make_method
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.model.decoder import PlainModel
from cloister_mpc.model.shape import bucket_of, permutations


def teacher_forced(model: PlainModel, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Logits (n, V) after every one of the tokens, in one pass with full attention."""
    wide = bucket_of(len(tokens))
    hidden, present = model.columns(tokens, wide)
    angles = model.angles(-wide, wide)
    for number in range(model.shape.layers):
        hidden, _ = model.prompt_layer(number, 1, hidden, present, angles)
    return model.logits(hidden[:, wide - len(tokens) :])


class PlainGeneration:
    """One prompt's caches, layer by layer, as a generation on shares keeps them; the prompt padded to its bucket."""

    def __init__(self, model: PlainModel, plan: CachePlan, prompt_tokens: int, new_tokens: int) -> None:
        self._model = model
        self._bucket = bucket_of(prompt_tokens)
        self.method = make_method(plan, self._bucket, new_tokens)
        self.caches: list[Cache] = []
        self._step = jax.jit(self._run_step)
        self._keep = jax.jit(self._run_keep)
        self._build = jax.jit(self.method.build)

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (V,) after the prompt."""
        model, method = self._model, self.method
        hidden, present = model.columns(tokens, self._bucket)
        angles = model.angles(-self._bucket, self._bucket)
        self.caches = []
        for number in range(model.shape.layers):
            hidden, prompt = model.prompt_layer(number, method.window, hidden, present, angles)
            offset = model.weights.layers[number].offset
            eviction = self._keep(prompt, offset, self._shuffles(method.evict_shuffles))
            self.caches.append(self._build(prompt, eviction))
        answers: NDArray[np.float32] = model.logits(hidden[:, -1:])[0]
        return answers

    def step(self, at: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, V) after generated tokens at positions `at`, `at` + 1, …"""
        model, columns = self._model, len(tokens)
        hidden, _ = model.columns(tokens, columns)
        angles, slot = model.angles(at, columns), jnp.int32(self.method.first_free + at)
        for number in range(model.shape.layers):
            hidden, self.caches[number] = self._step(
                model.epsilons[number], model.rescaled(number, hidden), model.weights.layers[number],
                self.caches[number], angles, slot, self._shuffles(self.method.choose_shuffles),
            )  # fmt: skip
        return model.logits(hidden)

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The likeliest next tokens, one by one."""
        answer = [int(self.prefill(tokens).argmax())]
        while len(answer) < count:
            answer.append(int(self.step(len(answer) - 1, answer[-1:])[0].argmax()))
        return answer

    def _run_keep(self, prompt: PromptLayer, offset: Array, shuffles: Shuffles) -> Array | None:
        return self.method.evict(prompt, self._model.decoder.functions.softmax, offset, shuffles)

    def _run_step(self, *given: Any) -> tuple[Array, Cache]:
        return self._model.decoder.step_layer(self.method, *given)

    def _shuffles(self, sizes: Sequence[int]) -> Shuffles:
        return tuple(jnp.asarray(permutations(self._model.shape.kv_heads, size)) for size in sizes)
