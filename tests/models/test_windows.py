"""What a model's own mask functions say of how far a layer looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import masking_utils

from cloister.models.hooked import Window, Windows
from tests.examples import examples


def seen_through(function: Callable[..., Any], size: int | None = None) -> int | None:
    return Windows().mask(mask_function=function, local_size=size, batch_size=1).length


def test_a_causal_mask_sees_all() -> None:
    assert seen_through(masking_utils.causal_mask_function) == 0


@examples(50)
@given(length=st.integers(1, 2**19))
def test_a_sliding_window_is_as_long_as_it_says(length: int) -> None:
    assert seen_through(masking_utils.sliding_window_causal_mask_function(length), length) == length


def chunked(size: int) -> Callable[..., Any]:
    return masking_utils.chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.int64))


def gap(_: Any, __: Any, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Causal, but for the token just before."""
    return (seen <= at) & (seen != at - 1)


OTHERS = {
    "both ways": masking_utils.bidirectional_mask_function,
    "a window both ways": masking_utils.sliding_window_bidirectional_mask_function(16),
    "chunks": chunked(16),
    "long chunks": chunked(8192),
    "a gap": gap,
    "the first tokens too": masking_utils.or_masks(
        masking_utils.sliding_window_causal_mask_function(64), lambda _, __, at, seen: (seen < 4) & (seen <= at)
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_mask_of_another_shape_is_none_of_ours(kind: str) -> None:
    assert seen_through(OTHERS[kind]) is None


def test_masks_of_one_model_are_told_apart() -> None:
    windows = Windows()
    kinds = [
        (masking_utils.sliding_window_causal_mask_function(8), 8),
        (masking_utils.sliding_window_causal_mask_function(24), 24),
        (masking_utils.causal_mask_function, None),
    ]
    for _ in range(2):
        found = [windows.mask(mask_function=function, local_size=size) for function, size in kinds]
        assert found == [Window(8), Window(24), Window(0)]


def test_a_chunk_is_not_taken_for_a_window_of_its_size() -> None:
    """Both are compositions of two functions by the same code."""
    windows, sliding = Windows(), masking_utils.sliding_window_causal_mask_function
    assert windows.mask(mask_function=sliding(16), local_size=16) == Window(16)
    assert windows.mask(mask_function=chunked(16), local_size=16) == Window(None)
    assert windows.mask(mask_function=sliding(32)) == Window(32)
    assert windows.mask(mask_function=sliding(64)) == Window(64)
    assert len(windows._known) == 4
    windows.mask(mask_function=chunked(16), local_size=16)
    assert len(windows._known) == 4, "what a step makes anew is not kept"
