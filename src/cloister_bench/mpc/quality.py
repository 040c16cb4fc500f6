"""What methods cost in quality (Figure 9, Tables 3 to 5), beside the full cache on the same prompts, not on shares."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import geometric_mean, mean
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from cloister.models.source import open_folder
from cloister.prompts.tokenizer import Tokenizer
from cloister_bench.mpc.baselines import ForgettingCache, method_of
from cloister_bench.mpc.plan import BaselinePlan, Plan, QualityMethod
from cloister_bench.mpc.quality_tasks import CONTINUATION_TOKENS, Sample, Task, answer_f1, perplexity, tasks_of
from cloister_mpc.cache.base import Cache, Eviction, PromptLayer, Shuffles, seen_slots, write_slots
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import NAIVE
from cloister_mpc.model.decoder import Angles, PlainModel
from cloister_mpc.model.shape import permutations, shape_of
from cloister_mpc.model.weights import LayerWeights, read_weights

ANSWER_TOKENS = 16
Decode = Callable[[Sequence[int]], str]


class QualityRow(NamedTuple):
    """Perplexities are better when lower; F1 of answers and the share of numbers retrieved when higher."""

    method: str
    budget: float
    task: str
    score: float
    full_score: float


def run_quality(
    model_folder: Path, shared: Path | None, plan: Plan, progress: Callable[[str], None]
) -> list[QualityRow]:
    """Without the shared folder, on generated texts."""
    folder = open_folder(model_folder, model_folder.name)
    shape = shape_of(folder)
    model = PlainModel(shape, read_weights(folder, shape), NAIVE)
    tokenizer = Tokenizer(folder)
    compared = product(plan.quality_methods, plan.quality_budgets)
    plans = [(method, budget, plan_for(method, budget)) for method, budget in compared]
    return judge(model, tokenizer.decode, tasks_of(shared, tokenizer.encode, plan.quality_samples), plans, progress)


def plan_for(method: QualityMethod, budget: float) -> CachePlan:
    """The method as it is compared: its budget kept to the token, however short."""
    if method == "mpcache":
        return CachePlan(budget=budget, at_least=0)
    return BaselinePlan(method=method, budget=budget, at_least=0)


def judge(
    model: PlainModel,
    decode: Decode,
    tasks: Sequence[Task],
    plans: Sequence[tuple[str, float, CachePlan]],
    progress: Callable[[str], None] = lambda what: None,
) -> list[QualityRow]:
    (wide,) = {len(sample.prompt) for task in tasks for sample in task.samples}
    full = Reader(model, CachePlan(method="full"), wide, CONTINUATION_TOKENS)
    readers = [Reader(model, plan, wide, CONTINUATION_TOKENS) for _, _, plan in plans]
    rows = []
    for task in tasks:
        outcomes: list[list[float]] = [[] for _ in (full, *readers)]
        for number, sample in enumerate(task.samples):
            prompt = read_prompt(model, sample.prompt)
            guess: Sequence[int] = sample.continuation
            for reader, scores in zip((full, *readers), outcomes, strict=True):
                score, guess = _outcome(task, sample, prompt, reader, decode, guess)
                scores.append(score)
            progress(f"{task.name}: {number + 1} of {len(task.samples)}")
        middle = geometric_mean if task.kind == "perplexity" else mean
        full_score, *totals = [float(middle(scores)) for scores in outcomes]
        rows += [
            QualityRow(name, budget, task.name, score, full_score)
            for (name, budget, _), score in zip(plans, totals, strict=True)
        ]
    return rows


def _outcome(
    task: Task, sample: Sample, prompt: "ReadPrompt", reader: "Reader", decode: Decode, guess: Sequence[int]
) -> tuple[float, Sequence[int]]:
    """The score, and what the reader answered: a good guess of what the next one will."""
    caches = reader.caches(prompt)

    def logits_for(tokens: Sequence[int]) -> NDArray[np.float32]:
        """(n, V): after the prompt, after the first token, … those that predict `tokens`."""
        after = reader.read(prompt, caches, tokens)
        return np.concatenate([prompt.logits[None], after[: len(tokens) - 1]])

    # The whole prompt predicts the first token, whatever is kept of it: it does not measure a method.
    truth = sample.continuation
    if task.kind == "perplexity":
        return perplexity(logits_for(truth)[1:], truth[1:]), truth
    if task.kind == "retrieval":
        predicted = logits_for(truth).argmax(axis=-1)
        return float(np.array_equal(predicted[1:], truth[1:])), truth
    tokens = _greedy(logits_for, guess, ANSWER_TOKENS)
    return answer_f1(decode(tokens).strip().split("\n")[0], sample.answers), tokens


def _greedy(logits_for: Callable[[Sequence[int]], NDArray[np.float32]], guess: Sequence[int], count: int) -> list[int]:
    """The likeliest `count` tokens one after the other. A pass checks many at once, so right guesses save passes."""
    tokens = list(guess[:count]) + [guess[-1]] * (count - len(guess))
    settled = 0
    while settled < count:
        predicted = logits_for(tokens).argmax(axis=-1)
        while settled < count and predicted[settled] == tokens[settled]:
            settled += 1
        if settled < count:
            tokens[settled:] = [int(token) for token in predicted[settled:]]
            settled += 1
    return tokens


class ReadPrompt(NamedTuple):
    """Every layer's queries, keys and values after the prefill, and the logits (V,) after the last token."""

    layers: list[PromptLayer]
    logits: NDArray[np.float32]


def read_prompt(model: PlainModel, tokens: Sequence[int]) -> ReadPrompt:
    wide = len(tokens)
    hidden, present = model.columns(tokens, wide, 0)
    angles = model.angles(-wide, wide)
    layers = []
    for number in range(model.shape.layers):
        hidden, prompt = model.prompt_layer(number, wide, hidden, present, angles)
        layers.append(prompt)
    return ReadPrompt(layers, model.logits(hidden[:, -1:])[0])


class Reader:
    """For prompts of one length; continuations are padded to another."""

    def __init__(self, model: PlainModel, plan: CachePlan, prompt_tokens: int, columns: int) -> None:
        self._model = model
        self._columns = columns
        self.method = method_of(plan, prompt_tokens, columns)
        self._evict = jax.jit(self._run_evict)
        self._build = jax.jit(self.method.build)
        self._layer = jax.jit(self._run_layer)
        self._angles = model.angles(0, columns)

    def caches(self, prompt: ReadPrompt) -> list[Cache]:
        built = []
        for number, seen in enumerate(prompt.layers):
            windowed = seen._replace(queries=seen.queries[:, -self.method.window :])
            offset = self._model.weights.layers[number].offset
            eviction = self._evict(windowed, offset, self._shuffles(self.method.evict_shuffles))
            built.append(self._build(seen._replace(queries=seen.queries[:, -1:]), eviction))
        return built

    def read(self, prompt: ReadPrompt, caches: list[Cache], tokens: Sequence[int]) -> NDArray[np.float32]:
        model, wide = self._model, len(prompt.layers[0].keys[0])
        padded = [*tokens, *([tokens[-1]] * (self._columns - len(tokens)))]
        hidden, _ = model.columns(padded, self._columns, wide)
        shuffles = self._shuffles(self.method.choose_shuffles)
        for number in range(model.shape.layers):
            hidden = self._layer(
                model.epsilons[number], model.rescaled(number, hidden), model.weights.layers[number], caches[number],
                self._angles, shuffles,
            )  # fmt: skip
        return model.logits(hidden[:, : len(tokens)])

    def _run_evict(self, prompt: PromptLayer, offset: Array, shuffles: Shuffles) -> Eviction | None:
        return self.method.evict(prompt, self._model.decoder.functions.softmax, offset, shuffles)

    def _run_layer(
        self, epsilon: Array, hidden: Array, weights: LayerWeights, cache: Cache, angles: Angles,
        shuffles: Shuffles,
    ) -> Array:  # fmt: skip
        decoder = self._model.decoder
        new = decoder.new_columns(epsilon, hidden, weights, angles)
        cache = write_slots(cache, self.method.first_free, new.keys, new.values)
        choice = jax.vmap(lambda query: self.method.choose(query[:, None], cache, shuffles), in_axes=1)(new.queries)
        seen = seen_slots(cache.pinned_keys.shape[1], self.method.first_free, self._columns)
        out = self._attend(new.queries, cache, choice, weights.offset, seen)
        present = jnp.ones((1, self._columns), hidden.dtype)
        return decoder.finish(hidden, out, weights, present, epsilon)

    def _attend(self, queries: Array, cache: Cache, choice: Array | None, offset: Array, seen: Array) -> Array:
        attend = partial(self.method.attend, softmax=self._model.decoder.functions.softmax, offset=offset)
        if isinstance(self.method, ForgettingCache):  # it changes from token to token

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
        return tuple(jnp.asarray(permutations(self._model.shape.kv_heads, size)) for size in sizes)
