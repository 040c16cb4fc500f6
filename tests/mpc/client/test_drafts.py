from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.client.answer import Drafts, propose

tokens = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def test_what_followed_before_is_proposed() -> None:
    assert propose([1, 2, 3, 4, 9, 1, 2], 2) == (3, 4)
    assert propose([1, 2, 7, 1, 2, 8, 1, 2], 1) == (8,)  # the latest occurrence counts
    assert propose([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], 1) == (7,)  # a longer match counts more
    assert propose([1, 2, 3], 4) == () and propose([1], 4) == ()


@given(tokens, st.integers(0, 6))
def test_a_proposal_did_follow_the_last_tokens(history: list[int], most: int) -> None:
    proposed = propose(history, most)
    assert len(proposed) <= most
    if proposed:
        text, wanted = history, [*history[-2:], *proposed]
        assert any(text[i : i + len(wanted)] == wanted for i in range(len(text)))


@given(tokens, st.integers(1, 4), st.integers(0, 8))
def test_a_guess_fills_the_pass_or_there_is_none(history: list[int], width: int, room: int) -> None:
    guess = Drafts(width).propose(history, room)
    assert len(guess) in (0, width)
    assert not guess or room >= width


def test_fruitless_guesses_stop_for_a_while() -> None:
    drafts, history = Drafts(2), [1, 2, 3, 4, 1, 2]
    for _ in range(Drafts.PATIENCE):
        assert drafts.propose(history, 9)
        drafts.kept(0)
    rests = 0
    while not drafts.propose(history, 9):
        rests += 1
    assert rests == 8


def test_no_width_no_guess() -> None:
    assert Drafts(0).propose([1, 2, 1, 2], 9) == ()
