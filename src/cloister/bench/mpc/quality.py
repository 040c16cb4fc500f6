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

from cloister.bench.mpc.quality_reading import Reader, ReadPrompt, read_prompt
from cloister.bench.mpc.quality_tasks import (
    CONTINUATION_TOKENS,
    PROMPT_TOKENS,
    Sample,
    Task,
    answer_f1,
    perplexity,
    tasks_of,
)
from cloister.models.source import open_folder
from cloister.models.tokenizer import Tokenizer
from cloister.mpc.cache.plan import CachePlan, MethodName
from cloister.mpc.functions.bundle import NAIVE
from cloister.mpc.shape import shape_of
from cloister.mpc.twin import PlainModel
from cloister.mpc.weights import read_weights

ANSWER_TOKENS = 16
BUDGETS = (0.05, 0.1, 0.2)
METHODS: tuple[MethodName, ...] = ("mpcache", "longcache", "infllm", "snapkv", "h2o", "tova", "streaming")
STATIC: tuple[MethodName, ...] = ("snapkv", "h2o", "tova", "streaming")


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
    budgets: Sequence[float] = BUDGETS,
    methods: Sequence[MethodName] = METHODS,
    progress: Callable[[str], None] = lambda what: None,
) -> list[QualityRow]:
    """Every method at every budget on every task. Without the shared folder, on generated texts."""
    plans = [(method, budget, plan_for(method, budget)) for method in methods for budget in budgets]
    return judge(model_folder, shared, plans, samples=samples, progress=progress)


def plan_for(method: MethodName, budget: float) -> CachePlan:
    """The method as it is compared: its budget kept to the token, however short."""
    plan = CachePlan(method=method, budget=budget, at_least=0)
    # Baselines rank single tokens, many at once: on plain numbers top-k finds the same ones sooner.
    return plan if method == "mpcache" else replace(plan, ranking="top_k", gather="keys")


def judge(
    model_folder: Path,
    shared: Path | None,
    plans: Sequence[tuple[str, float, CachePlan]],
    *,
    samples: int,
    progress: Callable[[str], None] = lambda what: None,
    only: Sequence[str] = (),
) -> list[QualityRow]:
    """Named plans on all tasks, or on those named in `only`."""
    folder = open_folder(model_folder, model_folder.name)
    shape = shape_of(folder)
    model = PlainModel(shape, read_weights(folder, shape), NAIVE)
    tokenizer = Tokenizer(folder)
    full = Reader(model, CachePlan(method="full"), PROMPT_TOKENS, CONTINUATION_TOKENS)
    readers = [Reader(model, plan, PROMPT_TOKENS, CONTINUATION_TOKENS) for _, _, plan in plans]
    rows = []
    for task in tasks_of(shared, tokenizer.encode, samples):
        if only and task.name not in only:
            continue
        outcomes: list[list[float]] = [[] for _ in (full, *readers)]
        for number, sample in enumerate(task.samples):
            prompt = read_prompt(model, sample.prompt)
            for reader, scores in zip((full, *readers), outcomes, strict=True):
                scores.append(_outcome(task, sample, prompt, reader, tokenizer))
            progress(f"{task.name}: {number + 1} of {len(task.samples)}")
        total = geometric_mean if task.kind == "perplexity" else mean
        full_score, *totals = map(total, outcomes)
        rows += [
            QualityRow(name, budget, task.name, score, full_score)
            for (name, budget, _), score in zip(plans, totals, strict=True)
        ]
    return rows


def _outcome(task: Task, sample: Sample, prompt: ReadPrompt, reader: Reader, tokenizer: Tokenizer) -> float:
    caches = reader.caches(prompt)

    def logits_for(tokens: Sequence[int]) -> NDArray[np.float32]:
        """(n, V): after the prompt, after the first token, … those that predict `tokens`."""
        after = reader.read(prompt, caches, tokens)
        return np.concatenate([prompt.logits[None], after[: len(tokens) - 1]])

    if task.kind == "perplexity":
        # The first token is the full prompt's to predict, whatever is kept: it tells nothing of a method.
        return perplexity(logits_for(sample.continuation)[1:], sample.continuation[1:])
    if task.kind == "retrieval":
        predicted = logits_for(sample.continuation).argmax(axis=-1)
        return float(np.array_equal(predicted[1:], sample.continuation[1:]))
    text = tokenizer.decode(_greedy(logits_for, sample.continuation, ANSWER_TOKENS))
    return answer_f1(text.strip().split("\n")[0], sample.answers)


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
