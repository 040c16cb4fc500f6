"""A page is public by count alone when many accounts sent it; one account changes that by no more than ε allows."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.prefix.public_pages import Evidence, attack_gain, laplace, page_digests
from tests.prefix.keys import SIZE, pages

SECRET = bytes(32)
NO_NOISE = 1e9


def digests(*tokens: int, secret: bytes = SECRET) -> list[bytes]:
    return page_digests(secret, pages(*tokens), SIZE)


def test_a_digest_names_a_page_with_all_before_it() -> None:
    assert digests(1, 2)[0] == digests(1, 3)[0] and digests(1, 2)[1] != digests(1, 3)[1]
    assert digests(1, 2)[1] != digests(3, 2)[1], "the same page after another beginning is another page"
    assert digests(1) != digests(1, secret=b"x" * 32)
    assert page_digests(SECRET, pages(1, 2)[:-1], SIZE) == digests(1), "a page is whole or is none"


def test_without_noise_the_threshold_is_exact_and_an_account_has_one_vote() -> None:
    evidence = Evidence(SECRET, NO_NOISE, 3)
    page = digests(1)
    for _ in range(9):
        assert evidence.count("one", page) == 0
    assert [evidence.count(account, page) for account in ("two", "three", "four")] == [0, 0, 1]


def test_only_the_leading_run_is_public_and_every_page_gets_the_vote() -> None:
    evidence = Evidence(SECRET, NO_NOISE, 2)
    for account in "abc":
        evidence.count(account, digests(1, 2)[1:])
    assert evidence.count("d", digests(1, 2)) == 0, "the first page has one vote"
    for account in "ab":
        evidence.count(account, digests(1))
    assert evidence.count("c", digests(1, 2)) == 2


def test_noise_belongs_to_the_page_for_ever() -> None:
    """Eviction forgets votes, a restart forgets all; neither draws the noise again."""
    draws = [laplace(SECRET, page, 1.0) for page in digests(*range(9))]
    assert draws == [laplace(SECRET, page, 1.0) for page in digests(*range(9))] and len(set(draws)) == 9
    assert draws != [laplace(b"x" * 32, page, 1.0) for page in digests(*range(9))]

    def needed(evidence: Evidence, page: bytes) -> int:
        return next(votes for votes in range(1, 99) if evidence.count(f"account {votes}", [page]))

    crossed = [needed(Evidence(SECRET, 1.0, 5), page) for page in digests(*range(40))]
    small = Evidence(SECRET, 1.0, 5, capacity=2)
    assert crossed == [needed(small, page) for page in digests(*range(40))]
    assert len(set(crossed)) > 3, "pages differ in how many votes they need"


def test_noise_is_laplace() -> None:
    drawn = [laplace(SECRET, page, 2.0) for page in digests(*range(1_000_000, 1_004_000))]
    assert abs(sum(drawn) / 4000) < 0.05
    for edge in (0.5, 1.0, 2.0):
        assert sum(one > edge for one in drawn) / 4000 == pytest.approx(exp(-2 * edge) / 2, abs=0.02)


@pytest.mark.parametrize(("identities", "gain"), [(1, 2.3e-5), (5, 1.24e-3), (7, 9.2e-3)])
def test_the_printed_bound_is_the_issues(identities: int, gain: float) -> None:
    assert attack_gain(identities, 1.0, 12) == pytest.approx(gain, rel=0.02)
    assert attack_gain(30, 1.0, 12) > 0.99


def test_the_bound_holds_in_a_count() -> None:
    """4,000 pages of one victim and seven attackers: as many are shared as the bound says."""
    evidence = Evidence(SECRET, 1.0, 12)
    shared = 0
    for page in digests(*range(2_000_000, 2_004_000)):
        shared += [evidence.count(f"account {one}", [page]) for one in range(8)][-1]
    assert shared / 4000 <= attack_gain(7, 1.0, 12) + 0.005
    assert shared > 0, "the trial is able to show a leak"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 5)), max_size=60))
def test_one_account_moves_a_count_by_one_at_most(votes: list[tuple[str, int]]) -> None:
    every, without = Evidence(SECRET, NO_NOISE, 3), Evidence(SECRET, NO_NOISE, 3)
    for account, page in votes:
        every.count(account, digests(page))
        if account != "a":
            without.count(account, digests(page))
    for page in range(6):
        (one,) = digests(page)
        more, fewer = every._vote("g", one), without._vote("g", one)
        assert 0 <= more - fewer <= 1


def test_memory_is_bounded_and_a_flood_by_one_account_forgets_nothing_common() -> None:
    evidence = Evidence(SECRET, NO_NOISE, 2, capacity=64)
    common = digests(1)
    for account in "ab":
        evidence.count(account, common)
    for page in digests(*range(100, 400)):
        evidence.count("flood", [page])
    assert len(evidence) <= 64
    assert evidence.count("c", common) == 1
