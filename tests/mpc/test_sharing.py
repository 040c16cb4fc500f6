from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cloister.mpc.shape import FINE
from cloister.mpc.sharing import Dealer, one_hots, permutations
from tests.examples import examples
from tests.mpc.trio import SHAPE

DEALER = Dealer()


@given(arrays.arrays(np.int32, arrays.array_shapes(min_dims=0, max_dims=3, max_side=5)))
@examples(30)
def test_integers_come_back_as_they_were(values: np.ndarray) -> None:
    back = DEALER.join(DEALER.deal(values))
    assert back.shape == values.shape
    assert (back == values).all()


@given(st.floats(-1000, 1000, width=32))
@examples(30)
def test_floats_come_back_within_fixed_point(value: float) -> None:
    assert abs(float(DEALER.join(DEALER.deal(np.float32(value).reshape(())))) - value) < 2**-17


def test_no_party_alone_sees_more_than_noise() -> None:
    """Two dealings of the same values have nothing in common at any party."""
    values = np.full(256, 7, dtype=np.int32)
    for one, other in zip(DEALER.deal(values), DEALER.deal(values), strict=True):
        first, second = (np.frombuffer(b"".join(each.share_chunks)[-2048:], np.uint8) for each in (one, other))
        assert (first == second).mean() < 0.05


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
