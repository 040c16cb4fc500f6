from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cloister.mpc.model.shape import FINE, one_hots, permutations
from tests.mpc.local import SHAPE


@given(st.lists(st.integers(0, SHAPE.vocabulary - 1), min_size=1, max_size=8), st.integers(0, 4))
def test_two_one_hots_name_each_token_and_padding_is_zero(tokens: list[int], padding: int) -> None:
    dealt = one_hots(SHAPE, tokens, len(tokens) + padding)
    coarse, fine = dealt["coarse"], dealt["fine"]
    assert not coarse[:, :padding].any() and not fine[:, :padding].any()
    both = (coarse[:, None] * fine[None]).reshape(-1, coarse.shape[1])[:, padding:]
    assert (both.sum(axis=0) == 1).all()
    assert both.argmax(axis=0).tolist() == tokens
    assert fine.shape[0] == FINE


@given(st.integers(1, 3), st.integers(1, 9))
def test_permutations_permute(heads: int, size: int) -> None:
    drawn = permutations(heads, size)
    assert drawn.shape == (heads, size, size)
    assert (drawn.sum(axis=1) == 1).all() and (drawn.sum(axis=2) == 1).all()


def test_permutations_are_drawn_anew() -> None:
    one, other = permutations(1, 32), permutations(1, 32)
    assert (one != other).any()
