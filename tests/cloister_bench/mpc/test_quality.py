from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax", reason="quality runs need the distribution cloister-mpc")

from cloister_bench.mpc.baselines import BASELINES, method_of
from cloister_bench.mpc.quality import Reader, judge, read_prompt
from cloister_bench.mpc.quality_tasks import Sample, Task
from cloister_mpc.cache.methods import FullCache, make_method
from cloister_mpc.cache.plan import CachePlan
from cloister_mpc.functions.bundle import EXACT
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PlainModel:
    tiny = tiny_model("llama", tmp_path_factory.mktemp("tiny"))
    return PlainModel(tiny.shape, tiny.weights, EXACT)


def test_the_full_cache_reads_as_one_pass_over_everything(model: PlainModel) -> None:
    tokens = some_tokens(PROMPT + NEW)
    prompt = read_prompt(model, tokens[:PROMPT])
    reader = Reader(model, FullCache(NEW + 2), NEW + 2)
    expected = teacher_forced(model, tokens)
    assert np.allclose(reader.read(reader.caches(prompt), tokens[PROMPT:]), expected[PROMPT:], atol=1e-3)


@pytest.mark.parametrize("name", BASELINES)
def test_a_budget_of_everything_is_the_full_cache_and_a_smaller_one_is_not(model: PlainModel, name: str) -> None:
    tokens = some_tokens(PROMPT + NEW)
    prompt, expected = read_prompt(model, tokens[:PROMPT]), teacher_forced(model, tokens)[PROMPT:]
    for budget, same in ((1.0, True), (0.6, False)):
        reader = Reader(model, method_of(name, CachePlan(budget=budget, at_least=0), PROMPT, NEW), NEW)
        found = reader.read(reader.caches(prompt), tokens[PROMPT:])
        assert np.isfinite(found).all() and np.allclose(found, expected, atol=1e-3) == same


def test_one_pass_answers_as_many_single_steps(model: PlainModel) -> None:
    """Each token chooses for itself, as it would have in a generation."""
    tokens = some_tokens(PROMPT + NEW, seed=2)
    prompt = read_prompt(model, tokens[:PROMPT])
    plan = CachePlan(**SMALL)
    reader = Reader(model, make_method(plan, PROMPT, NEW), NEW)
    together = reader.read(reader.caches(prompt), tokens[PROMPT:])
    generation = PlainGeneration(model, plan, PROMPT, NEW)
    generation.prefill(tokens[:PROMPT])
    single = [generation.step(at, [token])[0] for at, token in enumerate(tokens[PROMPT:])]
    assert np.allclose(together, np.stack(single), atol=1e-3)


def test_methods_are_judged_beside_the_full_cache(model: PlainModel) -> None:
    tokens = tuple(some_tokens(PROMPT + NEW, seed=5))
    sample = Sample(tokens[:PROMPT], tokens[PROMPT:])
    tasks = [Task("reading", "perplexity", [sample]), Task("finding", "retrieval", [sample])]
    whole, some, found, _ = judge(model, tasks, [("mpcache", 1.0), ("snapkv", 0.5)])
    assert whole.score == pytest.approx(whole.full_score, rel=1e-4) and whole.task == "reading"
    assert some.score != pytest.approx(some.full_score, rel=1e-6)
    assert found.score == found.full_score == 0.0
