"""What methods cost in quality (Figure 9, Tables 3 to 5): perplexity, answers and retrieval over long prompts at
several budgets, each beside the full cache on the same prompts. On plain numbers; time is not measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean, mean
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cloister.bench.mpc.baselines.plan import BaselinePlan
from cloister.bench.mpc.plan import FULL, QualityMethod
from cloister.bench.mpc.quality_reading import Reader, ReadPrompt, read_prompt
from cloister.bench.mpc.quality_tasks import (
    CONTINUATION_TOKENS,
    Sample,
    Task,
    answer_f1,
    perplexity,
    tasks_of,
)
from cloister.models.source import open_folder
from cloister.mpc.cache.plan import RECOMMENDED, CachePlan
from cloister.mpc.functions.bundle import NAIVE
from cloister.mpc.model.plain import PlainModel
from cloister.mpc.model.shape import shape_of
from cloister.mpc.model.weights import read_weights
from cloister.prompts.tokenizer import Tokenizer

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
    model_folder: Path,
    shared: Path | None,
    *,
    samples: int = 8,
    budgets: Sequence[float] = FULL.quality_budgets,
    methods: Sequence[QualityMethod] = FULL.quality_methods,
    progress: Callable[[str], None] = lambda what: None,
) -> list[QualityRow]:
    """Every method at every budget on every task. Without the shared folder, on generated texts."""
    folder = open_folder(model_folder, model_folder.name)
    shape = shape_of(folder)
    model = PlainModel(shape, read_weights(folder, shape), NAIVE)
    tokenizer = Tokenizer(folder)
    plans = [(method, budget, plan_for(method, budget)) for method in methods for budget in budgets]
    return judge(model, tokenizer.decode, tasks_of(shared, tokenizer.encode, samples), plans, progress)


def plan_for(method: QualityMethod, budget: float) -> CachePlan:
    """The method as it is compared: its budget kept to the token, however short."""
    if method == "mpcache":
        return replace(RECOMMENDED, budget=budget, at_least=0)
    # Baselines rank single tokens, many at once: on plain numbers top-k finds the same ones sooner.
    pinned = RECOMMENDED.pinned_first
    return BaselinePlan(method=method, budget=budget, at_least=0, pinned_first=pinned, ranking="top_k", gather="keys")


def judge(
    model: PlainModel,
    decode: Decode,
    tasks: Sequence[Task],
    plans: Sequence[tuple[str, float, CachePlan]],
    progress: Callable[[str], None] = lambda what: None,
) -> list[QualityRow]:
    """Named plans on given tasks, whose prompts are all of one length."""
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
                outcome = _outcome(task, sample, prompt, reader, decode, guess)
                scores.append(outcome.score)
                guess = outcome.tokens
            progress(f"{task.name}: {number + 1} of {len(task.samples)}")
        full_score, *totals = [_total(task, scores) for scores in outcomes]
        rows += [
            QualityRow(name, budget, task.name, score, full_score)
            for (name, budget, _), score in zip(plans, totals, strict=True)
        ]
    return rows


def _total(task: Task, scores: Sequence[float]) -> float:
    return geometric_mean(scores) if task.kind == "perplexity" else mean(scores)


class _Outcome(NamedTuple):
    score: float
    tokens: Sequence[int]  # what the reader answered, a good guess of what the next one will


def _outcome(
    task: Task, sample: Sample, prompt: ReadPrompt, reader: Reader, decode: Decode, guess: Sequence[int]
) -> _Outcome:
    caches = reader.caches(prompt)

    def logits_for(tokens: Sequence[int]) -> NDArray[np.float32]:
        """(n, V): after the prompt, after the first token, … those that predict `tokens`."""
        after = reader.read(prompt, caches, tokens)
        return np.concatenate([prompt.logits[None], after[: len(tokens) - 1]])

    # The first token is the whole prompt's to predict, whatever is kept of it: it tells nothing of a method.
    truth = sample.continuation
    if task.kind == "perplexity":
        return _Outcome(perplexity(logits_for(truth)[1:], truth[1:]), truth)
    if task.kind == "retrieval":
        predicted = logits_for(truth).argmax(axis=-1)
        return _Outcome(float(np.array_equal(predicted[1:], truth[1:])), truth)
    tokens = _greedy(logits_for, guess, ANSWER_TOKENS)
    return _Outcome(answer_f1(decode(tokens).strip().split("\n")[0], sample.answers), tokens)


def _greedy(logits_for: Callable[[Sequence[int]], NDArray[np.float32]], guess: Sequence[int], count: int) -> list[int]:
    """The likeliest `count` tokens one after the other; as a pass checks many at once, right guesses save passes."""
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
