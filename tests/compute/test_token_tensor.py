"""Token ids in a tensor: those given, and zeros where there is room."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from cloister.compute.layout import token_tensor


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50), st.integers(0, 60))
def test_it_holds_the_tokens_and_zeros_behind(tokens: list[int], room: int) -> None:
    made = token_tensor(tokens, room=room)
    assert made.dtype == torch.int64
    assert made.tolist() == tokens + [0] * max(0, room - len(tokens))


def test_it_goes_where_the_logits_are() -> None:
    """Of `meta`, which holds nothing, the shape is enough."""
    made = token_tensor([5, 6], torch.device("meta"), room=3)
    assert made.device.type == "meta" and made.shape == (3,)
