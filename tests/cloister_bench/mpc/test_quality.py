from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="quality runs need the distribution cloister-mpc")

from cloister_bench.mpc.plan import BaselinePlan
from cloister_bench.mpc.quality import Reader, _greedy, judge, read_prompt
from cloister_bench.mpc.quality_tasks import Sample, Task
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import NAIVE
from cloister_mpc.model.decoder import PlainModel
from tests.cloister_mpc.model.plain_generation import PlainGeneration, teacher_forced
from tests.cloister_mpc.model.tiny import some_tokens, tiny_model

PROMPT, NEW = 64, 6
SMALL = {
    "at_least": 0,
    "budget": 0.5,
    "pinned_first": 4,
    "pinned_last": 4,
    "granularity": 2,
    "cluster": 4,
    "static_keep": 0.5,
}
PLANS = {
    "mpcache": CachePlan(**SMALL),
    "h2o": BaselinePlan(method="h2o", at_least=0, budget=0.5),
    "tova": BaselinePlan(method="tova", at_least=0, budget=0.5),
    "snapkv": BaselinePlan(method="snapkv", at_least=0, budget=0.5),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PlainModel:
    tiny = tiny_model("llama", tmp_path_factory.mktemp("tiny"))
    return PlainModel(tiny.shape, tiny.weights, NAIVE)


def test_the_full_cache_reads_as_one_pass_over_everything(model: PlainModel) -> None:
    tokens = some_tokens(PROMPT + NEW)
    prompt = read_prompt(model, tokens[:PROMPT])
    reader = Reader(model, CachePlan(method="full"), PROMPT, NEW + 2)
    expected = teacher_forced(model, tokens)
    assert np.allclose(prompt.logits, expected[PROMPT - 1], atol=1e-3)
    assert np.allclose(reader.read(prompt, reader.caches(prompt), tokens[PROMPT:]), expected[PROMPT:], atol=1e-3)


@pytest.mark.parametrize("name", PLANS)
def test_one_pass_answers_as_many_single_steps(model: PlainModel, name: str) -> None:
    """Each token chooses and forgets for itself, as it would have in a generation."""
    tokens = some_tokens(PROMPT + NEW, seed=2)
    prompt = read_prompt(model, tokens[:PROMPT])
    reader = Reader(model, PLANS[name], PROMPT, NEW)
    together = reader.read(prompt, reader.caches(prompt), tokens[PROMPT:])
    generation = PlainGeneration(model, PLANS[name], PROMPT, NEW)
    generation.prefill(tokens[:PROMPT])
    single = [generation.step(at, [token])[0] for at, token in enumerate(tokens[PROMPT:])]
    assert np.allclose(together, np.stack(single), atol=1e-3)


def test_guesses_do_not_change_what_is_likeliest(model: PlainModel) -> None:
    tokens = some_tokens(PROMPT, seed=3)
    prompt = read_prompt(model, tokens)
    reader = Reader(model, PLANS["mpcache"], PROMPT, NEW)
    caches = reader.caches(prompt)

    def logits_for(given: list[int]) -> np.ndarray:
        return np.concatenate([prompt.logits[None], reader.read(prompt, caches, given)[: len(given) - 1]])

    generation = PlainGeneration(model, PLANS["mpcache"], PROMPT, NEW)
    expected = generation.greedy(tokens, NEW)
    assert _greedy(logits_for, some_tokens(NEW, seed=4), NEW) == expected == _greedy(logits_for, expected, NEW)


def test_methods_are_judged_beside_the_full_cache(model: PlainModel) -> None:
    tokens = tuple(some_tokens(PROMPT + NEW, seed=5))
    sample = Sample(tokens[:PROMPT], tokens[PROMPT:], ("yes",))
    tasks = [Task("reading", "perplexity", [sample]), Task("answers", "answer", [sample])]
    everything = CachePlan(method="mpcache", budget=1.0)
    plans = [("all", 1.0, everything), ("some", 0.5, PLANS["snapkv"])]
    whole, some, answered, _ = judge(model, lambda given: "yes" if len(given) else "", tasks, plans)
    assert whole.score == pytest.approx(whole.full_score, rel=1e-4) and whole.task == "reading"
    assert some.score != pytest.approx(some.full_score, rel=1e-6)
    assert answered.score == 1.0
