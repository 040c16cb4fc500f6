from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from cloister_mpc.shares import Dealer
from tests.examples import examples

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
