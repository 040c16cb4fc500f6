"""What a model predicts for a given continuation when it reads its prompt through one method's cache: on plain numbers,
with the very functions that run on shares.

A prompt is computed once and shared between methods. All tokens of a continuation go in one pass, each choosing for
itself what it reads, so that the answers are those of as many single steps. Knows no tasks and no scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from cloister.mpc.cache.base import Cache, Choice, Eviction, PromptLayer, Shuffles, seen_slots, write_slots
from cloister.mpc.cache.plan import CachePlan, leader
from cloister.mpc.model import decoder
from cloister.mpc.model.decoder import Angles
from cloister.mpc.model.plain import PlainModel
from cloister.mpc.model.shape import permutations
from cloister.mpc.model.weights import LayerWeights

FORGETFUL = ("h2o", "tova")
"""Methods whose cache changes from token to token: their continuation is read one by one within each layer."""


class ReadPrompt(NamedTuple):
    """A prompt after the prefill: every layer's queries, keys and values, and the logits (V,) after its last token."""

    layers: list[PromptLayer]
    logits: NDArray[np.float32]


def read_prompt(model: PlainModel, tokens: Sequence[int]) -> ReadPrompt:
    """The prompt, a whole bucket of tokens, through all layers."""
    wide = len(tokens)
    hidden, present = model.columns(tokens, wide, 0)
    angles = model.angles(-wide, wide)
    layers = []
    for number in range(model.shape.layers):
        hidden, prompt = model.prompt_layer(number, wide, hidden, present, angles)
        layers.append(prompt)
    return ReadPrompt(layers, model.logits(hidden[:, -1:])[0])


class Reader:
    """One plan's way of reading, for prompts of one length; continuations are padded to another."""

    def __init__(self, model: PlainModel, plan: CachePlan, prompt_tokens: int, columns: int) -> None:
        self._model = model
        self._plan = plan
        self._columns = columns
        self.method = plan.make_method(prompt_tokens, columns)
        self._evict = jax.jit(self._run_evict)
        self._build = jax.jit(self.method.build)
        self._layer = jax.jit(self._run_layer, static_argnames="leading")
        self._angles = model.angles(0, columns)

    def caches(self, prompt: ReadPrompt) -> list[Cache]:
        evictions: dict[int, Eviction | None] = {}
        built = []
        for number, seen in enumerate(prompt.layers):
            leading = leader(number, self._plan)
            if leading == number:
                windowed = seen._replace(queries=seen.queries[:, -self.method.window :])
                offset = self._model.weights.layers[number].offset
                evictions[number] = self._evict(windowed, offset, self._shuffles(self.method.evict_shuffles))
            built.append(self._build(seen._replace(queries=seen.queries[:, -1:]), evictions[leading]))
        return built

    def read(self, prompt: ReadPrompt, caches: list[Cache], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, V) after each of the continuation's tokens."""
        model, wide = self._model, len(prompt.layers[0].keys[0])
        padded = [*tokens, *([tokens[-1]] * (self._columns - len(tokens)))]
        hidden, _ = model.columns(padded, self._columns, wide)
        choices: dict[int, Choice | None] = {}
        shuffles = self._shuffles(self.method.choose_shuffles)
        for number in range(model.shape.layers):
            leading = leader(number, self._plan)
            hidden, choices[number] = self._layer(
                model.epsilons[number], model.rescaled(number, hidden), model.weights.layers[number], caches[number],
                self._angles, prompt.layers[number].queries[:, -1:], choices.get(leading), shuffles,
                leading=leading == number,
            )  # fmt: skip
        return model.logits(hidden[:, : len(tokens)])

    def _run_evict(self, prompt: PromptLayer, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return self.method.evict(prompt, self._model.functions.softmax, offset, shuffles)

    def _run_layer(
        self, epsilon: Array, hidden: Array, weights: LayerWeights, cache: Cache, angles: Angles, last_query: Array,
        choice: Choice | None, shuffles: Shuffles, *, leading: bool,
    ) -> tuple[Array, Choice | None]:  # fmt: skip
        shape, functions = self._model.shape, self._model.functions
        new = decoder.new_columns(shape, functions, epsilon, hidden, weights, angles)
        cache = write_slots(cache, self.method.first_free, new.keys, new.values)
        if leading:
            before = jnp.concatenate([last_query, new.queries[:, :-1]], axis=1)
            asking = before if self._plan.selection == "ahead" else new.queries
            choice = jax.vmap(lambda query: self.method.choose(query[:, None], cache, shuffles), in_axes=1)(asking)
        seen = seen_slots(cache.pinned_keys.shape[1], self.method.first_free, self._columns)
        out = self._attend(new.queries, cache, choice, weights.offset, seen)
        present = jnp.ones((1, self._columns), hidden.dtype)
        return decoder.finish(shape, functions, hidden, out, weights, present, epsilon), choice

    def _attend(self, queries: Array, cache: Cache, choice: Choice | None, offset: Array, seen: Array) -> Array:
        attend = partial(self.method.attend, softmax=self._model.functions.softmax, offset=offset)
        if self._plan.method in FORGETFUL:

            def one_by_one(before: Cache, column: tuple[Array, Array]) -> tuple[Cache, Array]:
                out, after = attend(column[0][:, None], before, None, seen=column[1][None])
                return after, out[:, 0]

            return lax.scan(one_by_one, cache, (queries.swapaxes(0, 1), seen))[1].swapaxes(0, 1)
        each: Callable[..., Array] = jax.vmap(
            lambda query, chosen, sees: attend(query[:, None], cache, chosen, seen=sees[None])[0][:, 0],
            in_axes=(1, 0, 0),
            out_axes=1,
        )
        return each(queries, choice, seen)

    def _shuffles(self, sizes: Sequence[int]) -> Shuffles:
        return Shuffles(tuple(jnp.asarray(permutations(self._model.shape.kv_heads, size)) for size in sizes))
