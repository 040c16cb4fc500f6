"""The same layers on plain numbers: what a generation on shares would answer with numbers of unlimited precision.

Used by calibration, tests and quality runs. One compiled function per kind and shape serves all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister.mpc.cache.base import Cache, Choice, Eviction, Method, PromptLayer, Shuffles
from cloister.mpc.cache.plan import CachePlan, leader
from cloister.mpc.functions.bundle import LEAN, Functions
from cloister.mpc.model import decoder
from cloister.mpc.model.decoder import Angles
from cloister.mpc.model.shape import ModelShape, bucket_of, one_hots, permutations
from cloister.mpc.model.weights import ModelWeights


class PlainModel:
    """A model in the clear, with the functions and the cache that a generation on shares would use."""

    def __init__(self, shape: ModelShape, weights: ModelWeights, functions: Functions = LEAN) -> None:
        self.shape = shape
        self.functions = functions
        self.weights = jax.tree_util.tree_map(jnp.asarray, weights)
        self.epsilons = [jnp.float32(shape.epsilon * scale * scale) for scale in shape.scales]
        self._embed = jax.jit(lambda *given: decoder.embed(shape, *given)[0])
        self._prompt = jax.jit(
            lambda window, *given: decoder.prompt_layer(shape, functions, window, *given), static_argnums=0
        )
        self._logits = jax.jit(lambda *given: decoder.logits(shape, functions, *given))

    def generation(self, plan: CachePlan, prompt_tokens: int, new_tokens: int) -> PlainGeneration:
        """A generation for a prompt of so many tokens, padded to its bucket, and room for answers."""
        return PlainGeneration(self, plan, bucket_of(prompt_tokens), new_tokens)

    def columns(self, tokens: Sequence[int], wide: int, first: int) -> tuple[Array, Array]:
        """Embedded tokens (D, wide), padded on the left, and which columns hold one."""
        dealt = one_hots(self.shape, tokens, wide, first)
        places = dealt.get("places", np.zeros((0, wide), np.int32))
        present = dealt["coarse"].sum(axis=0, keepdims=True)
        return self._embed(self.weights.outer, dealt["coarse"], dealt["fine"], places), jnp.asarray(present)

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

    def teacher_forced(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, V) after every one of the tokens, in one pass with full attention."""
        wide = bucket_of(len(tokens))
        hidden, present = self.columns(tokens, wide, 0)
        angles = self.angles(-wide, wide)
        for number in range(self.shape.layers):
            hidden, _ = self.prompt_layer(number, 1, hidden, present, angles)
        return self.logits(hidden[:, wide - len(tokens) :])


class PlainGeneration:
    """One prompt's caches, layer by layer, as a generation on shares keeps them."""

    def __init__(self, model: PlainModel, plan: CachePlan, bucket: int, new_tokens: int) -> None:
        self._model = model
        self._plan = plan
        self._bucket = bucket
        self.method: Method = plan.make_method(bucket, new_tokens)
        self.caches: list[Cache] = []
        self._length = 0
        self._step = jax.jit(self._run_step, static_argnames="following")
        self._keep = jax.jit(self._run_keep)
        self._build = jax.jit(self.method.build)
        self._choose = jax.jit(self.method.choose)
        self._queries: dict[int, Array] = {}

    def prefill(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (V,) after the prompt."""
        model, method = self._model, self.method
        hidden, present = model.columns(tokens, self._bucket, 0)
        angles = model.angles(-self._bucket, self._bucket)
        self._length, self.caches = len(tokens), []
        evictions: dict[int, Eviction | None] = {}
        for number in range(model.shape.layers):
            hidden, prompt = model.prompt_layer(number, method.window, hidden, present, angles)
            leading = leader(number, self._plan)
            if leading == number:
                offset = model.weights.layers[number].offset
                evictions[number] = self._keep(prompt, offset, self._shuffles(method.evict_shuffles))
                self._queries[number] = prompt.queries[:, -1:]
            self.caches.append(self._build(prompt, evictions[leading]))
        answers: NDArray[np.float32] = model.logits(hidden[:, -1:])[0]
        return answers

    def step(self, at: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, V) after generated tokens at positions `at`, `at` + 1, …"""
        model, columns = self._model, len(tokens)
        hidden, _ = model.columns(tokens, columns, self._length + at)
        angles, slot = model.angles(at, columns), jnp.int32(self.method.first_free + at)
        ahead = self._plan.selection == "ahead"
        choices: dict[int, Choice | None] = {}
        for number in range(model.shape.layers):
            leading = leader(number, self._plan)
            shuffles = self._shuffles(self.method.choose_shuffles) if leading == number else Shuffles(())
            if ahead and leading == number:
                choices[number] = self._choose(self._queries[number], self.caches[number], shuffles)
            hidden, self.caches[number], choice, queries = self._step(
                model.epsilons[number], model.rescaled(number, hidden), model.weights.layers[number],
                self.caches[number], angles, slot, choices.get(leading), shuffles,
                following=ahead or leading != number,
            )  # fmt: skip
            if leading == number:
                choices[number], self._queries[number] = choice, queries
        return model.logits(hidden)

    def greedy(self, tokens: Sequence[int], count: int, end: int | None = None) -> list[int]:
        """The likeliest next tokens, one by one, up to `count` or the token that ends a text."""
        answer = [int(self.prefill(tokens).argmax())]
        while len(answer) < count and answer[-1] != end:
            answer.append(int(self.step(len(answer) - 1, answer[-1:])[0].argmax()))
        return answer

    def _run_keep(self, prompt: PromptLayer, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return self.method.evict(prompt, self._model.functions.softmax, offset, shuffles)

    def _run_step(self, *given: Any, following: bool) -> tuple[Array, Cache, Choice | None, Array]:
        run = partial(decoder.step_layer, following=following)
        return run(self._model.shape, self._model.functions, self.method, *given)

    def _shuffles(self, sizes: Sequence[int]) -> Shuffles:
        return Shuffles(tuple(jnp.asarray(permutations(self._model.shape.kv_heads, size)) for size in sizes))
