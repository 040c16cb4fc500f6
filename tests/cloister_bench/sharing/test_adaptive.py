"""The attacker that goes on part by part, against caches made here."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from cloister_bench.sharing.adaptive import MOST_HITS, Extension, exposure, extensions
from cloister_bench.sharing.attack import Probe
from cloister_bench.sharing.prompts import make_secret
from tests.cloister_bench.sharing.caches import Caller, PagedCache


def attacked(cache: PagedCache, trials: int = 60) -> Sequence[Extension]:
    others = [Caller(cache, f"eve-{number}") for number in range(3)]
    return extensions(Caller(cache, "victim"), others, trials, 5, parts=3, candidates=4, settle=lambda seconds: None)


def test_a_secret_has_parts_of_one_form_each() -> None:
    secret = make_secret(random.Random(1), 3, 4)
    assert [len(set(part)) for part in secret.parts] == [4, 4, 4] and len(secret.true) == 3
    assert all(part[0].split()[:2] == other.split()[:2] for part in secret.parts for other in part)


def test_where_all_is_shared_every_part_is_found() -> None:
    assert all(one == Extension(3, 3, one.blind, 3) and one.whole for one in attacked(PagedCache(shared=True)))


def test_where_nothing_is_shared_it_guesses_like_a_blind_one() -> None:
    found = attacked(PagedCache(shared=False), 300)
    reached = sum(one.reached for one in found)
    for right in (sum(one.right for one in found), sum(one.blind for one in found)):
        assert 0.15 < right / reached < 0.35
    assert sum(one.whole for one in found) < 20


@pytest.mark.parametrize(
    ("cache", "hits"),
    [
        (PagedCache(shared=True), MOST_HITS),
        (PagedCache(shared=True, serves=8), 8),
        (PagedCache(shared=False), None),
    ],
)
def test_exposure_counts_what_strangers_find_before_it_is_taken_back(cache: PagedCache, hits: int | None) -> None:
    names = ("eve",) if cache._serves is None else ("a", "b", "c")
    strangers = [Caller(cache, name) for name in names]
    assert exposure(Caller(cache, "victim"), strangers, 1, patience=2, settle=lambda seconds: None) == hits


class Scripted:
    """Finds so many of a hundred tokens, ask by ask."""

    def __init__(self, *found: int) -> None:
        self._found = iter(found)

    def ask(self, prompt: str) -> Probe:
        return Probe(0.1, next(self._found), 100)


def test_a_page_that_a_stranger_has_of_its_own_is_no_hit() -> None:
    """Of two prompts that begin alike: what it computed itself is found, whoever else asks for the rest."""
    stranger = Scripted(16, 96, 96, 96, 16)
    assert exposure(Scripted(0, 0), [stranger], 1, settle=lambda seconds: None) == 3
