"""The attack on the prefix cache, against caches made here: it wins where all is shared, and nowhere else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from cloister_bench.cli.sharing import FLOODED_TOKENS, flooded_mib
from cloister_bench.sharing.attack import Probe, attacks, reuse
from cloister_bench.sharing.prompts import AFTER, BEFORE, make_trial
from cloister_bench.sharing.results import FIGURES, Plan, Results, tables
from cloister_bench.suite.documents import draw_figures


class Cache:
    """Whole prompts, found by everybody or by who wrote them."""

    def __init__(self, *, shared: bool) -> None:
        self._shared = shared
        self._known: set[tuple[str, str]] = set()

    def ask(self, tenant: str, prompt: str) -> Probe:
        owner = "" if self._shared else tenant
        found = (owner, prompt) in self._known
        self._known.add((owner, prompt))
        return Probe(0.1 if found else 0.5, 90 if found else 0, 100)


class Caller:
    def __init__(self, cache: Cache, tenant: str) -> None:
        self._cache, self._tenant = cache, tenant

    def ask(self, prompt: str) -> Probe:
        return self._cache.ask(self._tenant, prompt)


def callers(*, shared: bool) -> tuple[Caller, Caller]:
    cache = Cache(shared=shared)
    return Caller(cache, "victim"), Caller(cache, "attacker")


def test_candidates_differ_in_the_secret_alone() -> None:
    trial = make_trial(random.Random(1), 4)
    assert len(set(trial.candidates)) == 4 and 0 <= trial.true < 4
    assert all(one.startswith(BEFORE) and one.endswith(AFTER) for one in trial.candidates)
    assert {make_trial(random.Random(seed), 4).true for seed in range(40)} == {0, 1, 2, 3}


@pytest.mark.parametrize("shared", [True, False])
def test_the_attack_wins_where_all_is_shared_and_guesses_where_nothing_is(shared: bool) -> None:
    guesses = attacks(*callers(shared=shared), trials=400, candidates=4, seed=7)  # type: ignore[arg-type]
    for right in (sum(guess.by_time for guess in guesses), sum(guess.by_count for guess in guesses)):
        assert right == 400 if shared else 60 < right < 140


def test_the_document_says_what_was_met_and_draws(tmp_path: Path) -> None:
    results = Results(Plan(trials=40, policies=("safekv", "global")), "m")
    for policy in ("safekv", "global"):
        pair = callers(shared=policy == "global")
        results.reused[policy] = reuse(*pair, seed=1, patience=2)  # type: ignore[arg-type]
        results.guesses[policy] = attacks(*pair, trials=40, candidates=4, seed=1)  # type: ignore[arg-type]
    document = results.document()
    assert document["targets"][0]["met"] and document["attack"]["global"]["by count"]["low"] > 0.9
    assert document["reuse"]["global"]["found"] == 90 and document["reuse"]["safekv"]["found"] == 0
    assert "guessing: 0.25" in tables(document)[0].title
    assert not document["targets"][3]["met"] and document["targets"][3]["reason"] == "not measured"
    assert [file.name for file in draw_figures(document, tmp_path, FIGURES)] == ["sharing-attack.png"]


def test_the_attacked_cache_has_room_for_the_same_number_of_tokens_whatever_the_model(tmp_path: Path) -> None:
    """A victim's prompt that the attacker's own flood pushes out is found under no policy: then it proves nothing."""
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "model_type": "llama"}
    sizes = []
    for layers in (8, 16):
        folder = tmp_path / str(layers)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({**shape, "num_hidden_layers": layers}))
        sizes.append(flooded_mib(str(folder)))
    assert sizes[0] << 20 == FLOODED_TOKENS * 8 * 2 * 2 * 3 * 64 and sizes[1] == 2 * sizes[0]
