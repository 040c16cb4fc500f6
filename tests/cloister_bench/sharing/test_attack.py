"""The attack on the prefix cache, against caches made here: it wins where all is shared, and nowhere else."""

from __future__ import annotations

import random

import pytest

from cloister_bench.sharing.attack import Probe, attacks
from cloister_bench.sharing.prompts import AFTER, BEFORE, make_trial


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
