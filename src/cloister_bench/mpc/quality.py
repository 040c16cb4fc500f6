"""What methods cost in quality (Figure 9, Tables 3 to 5), beside the full cache on the same prompts, not on shares."""

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister.models.source import ModelFolder
from cloister.prompts.tokenizer import Tokenizer
from cloister_bench.mpc.baselines import H2O, method_of
from cloister_bench.mpc.plan import Plan
from cloister_bench.mpc.quality_tasks import CONTINUATION_TOKENS, Sample, Task, perplexity, tasks_of
from cloister_mpc.cache.base import Cache, PromptLayer, Shuffles, seen_slots, write_slots
from cloister_mpc.cache.methods import FullCache, Method
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT
from cloister_mpc.model.decoder import Angles, PlainModel
from cloister_mpc.model.shape import permutations, shape_of
from cloister_mpc.model.weights import LayerWeights, read_weights


class QualityRow(NamedTuple):
    """Perplexities are better when lower; the share of numbers retrieved when higher."""

    method: str
    budget: float
    task: str
    score: float
    full_score: float


def run_quality(
    folder: ModelFolder, shared: Path | None, plan: Plan, progress: Callable[[str], None]
) -> list[QualityRow]:
    shape = shape_of(folder)
    model = PlainModel(shape, read_weights(folder, shape), EXACT)
    tasks = tasks_of(shared, Tokenizer(folder).encode, plan.quality_samples)
    return judge(model, tasks, list(product(plan.quality_methods, plan.quality_budgets)), progress)


def judge(
    model: PlainModel,
    tasks: Sequence[Task],
    compared: Sequence[tuple[str, float]],
    progress: Callable[[str], None] = lambda what: None,
) -> list[QualityRow]:
    """Methods by name, with their budgets."""
    (wide,) = {len(sample.prompt) for task in tasks for sample in task.samples}
    plans = [(name, CachePlan(budget=budget, at_least=0)) for name, budget in compared]
    methods = [method_of(name, plan, wide, CONTINUATION_TOKENS) for name, plan in plans]
    readers = [Reader(model, method, CONTINUATION_TOKENS) for method in (FullCache(CONTINUATION_TOKENS), *methods)]
    rows = []
    for task in tasks:
        outcomes: list[list[float]] = [[] for _ in readers]
        for number, sample in enumerate(task.samples):
            prompt = read_prompt(model, sample.prompt)
            for reader, scores in zip(readers, outcomes, strict=True):
                scores.append(_outcome(task, sample, prompt, reader))
            progress(f"{task.name}: {number + 1} of {len(task.samples)}")
        middle = geometric_mean if task.kind == "perplexity" else mean
        full, *totals = [float(middle(scores)) for scores in outcomes]
        rows += [QualityRow(*each, task.name, score, full) for each, score in zip(compared, totals, strict=True)]
    return rows


def _outcome(task: Task, sample: Sample, prompt: list[PromptLayer], reader: "Reader") -> float:
    """Of all tokens but the first: the whole prompt predicts it, whatever is kept."""
    truth = sample.continuation
    predicting = reader.read(reader.caches(prompt), truth)[:-1]
    if task.kind == "perplexity":
        return perplexity(predicting, truth[1:])
    return float(np.array_equal(predicting.argmax(axis=-1), truth[1:]))


def read_prompt(model: PlainModel, tokens: Sequence[int]) -> list[PromptLayer]:
    """Every layer's queries, keys and values after the prefill."""
    wide = len(tokens)
    hidden, present = model.columns(tokens, wide)
    angles = model.angles(-wide, wide)
    layers = []
    for number in range(model.shape.layers):
        hidden, prompt = model.prompt_layer(number, wide, hidden, present, angles)
        layers.append(prompt)
    return layers


class Reader:
    """For prompts of one length; continuations are padded to another."""

    def __init__(self, model: PlainModel, method: Method, columns: int) -> None:
        self._model = model
        self._columns = columns
        self._method = method
        self._softmax = model.decoder.functions.softmax
        self._build = jax.jit(self._run_build)
        self._layer = jax.jit(self._run_layer)
        self._angles = model.angles(0, columns)

    def caches(self, prompt: list[PromptLayer]) -> list[Cache]:
        shuffles = self._shuffles(self._method.evict_shuffles)
        layers = zip(prompt, self._model.weights.layers, strict=True)
        return [self._build(seen, weights.offset, shuffles) for seen, weights in layers]

    def read(self, caches: list[Cache], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits (n, V) after each of the tokens."""
        model = self._model
        padded = [*tokens, *([tokens[-1]] * (self._columns - len(tokens)))]
        hidden, _ = model.columns(padded, self._columns)
        shuffles = self._shuffles(self._method.choose_shuffles)
        for number, (weights, cache) in enumerate(zip(model.weights.layers, caches, strict=True)):
            scaled = model.rescaled(number, hidden)
            hidden = self._layer(model.epsilons[number], scaled, weights, cache, self._angles, shuffles)
        return model.logits(hidden[:, : len(tokens)])

    def _run_build(self, prompt: PromptLayer, offset: Array, shuffles: Shuffles) -> Cache:
        windowed = prompt._replace(queries=prompt.queries[:, -self._method.window :])
        return self._method.build(prompt, self._method.evict(windowed, self._softmax, offset, shuffles))

    def _run_layer(
        self, epsilon: Array, hidden: Array, weights: LayerWeights, cache: Cache, angles: Angles, shuffles: Shuffles
    ) -> Array:
        """Each column makes its choice, as it would in a generation."""
        decoder, method, softmax = self._model.decoder, self._method, self._softmax
        new = decoder.new_columns(epsilon, hidden, weights, angles)
        cache = write_slots(cache, method.first_free, new.keys, new.values)
        seen = seen_slots(cache.pinned_keys.shape[1], method.first_free, self._columns)

        def attend(query: Array, sees: Array) -> Array:
            choice = method.choose(query[:, None], cache, shuffles)
            return method.attend(query[:, None], cache, choice, softmax, weights.offset, sees[None])[:, 0]

        if isinstance(method, H2O):
            out = method.in_turn(new.queries, cache, softmax, weights.offset, seen)
        else:
            out = jax.vmap(attend, in_axes=(1, 0), out_axes=1)(new.queries, seen)
        return decoder.finish(hidden, out, weights, jnp.ones((1, self._columns), hidden.dtype), epsilon)

    def _shuffles(self, sizes: Sequence[int]) -> Shuffles:
        return tuple(jnp.asarray(permutations(self._model.shape.kv_heads, size)) for size in sizes)
