"""How products are launched on a GPU: numbers that follow from shapes, checked without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloister.compute.gpu.products import ProductLaunch, launch_of, splits_of
from cloister.compute.layer import Packed


def packed(columns: int, k: int, gate: Any = None) -> Packed:
    return Packed(torch.empty(0), columns, k, gate=gate)


def test_k_is_cut_by_the_weights_shape_alone() -> None:
    """Every range has its four stages or more; a gated weight is not cut."""
    assert [splits_of(packed(*shape)) for shape in ((6144, 4096), (4096, 14336), (128256, 4096))] == [5, 8, 1]
    assert splits_of(packed(28672, 4096, "silu")) == 1
    assert splits_of(packed(576, 576)) == 2
    assert splits_of(packed(3072, 576)) == 2 and splits_of(packed(3072, 576, "silu")) == 1


@pytest.mark.parametrize(
    ("shape", "rows", "launch"),
    [
        ((6144, 4096), 8, ProductLaunch("linear_8", (96, 5), 160, 46208, 5)),
        ((6144, 4096), 64, ProductLaunch("linear_64", (48, 5), 288, 90240, 5)),
        ((28672, 4096, "silu"), 32, ProductLaunch("linear_32", (224, 1), 288, 82048, 1)),
        ((576, 576), 96, ProductLaunch("linear_96", (5, 2), 288, 102528, 2)),
        ((6144, 4096), 384, ProductLaunch("linear_many", (3, 48), 288, 131200, 1)),
    ],
)
def test_few_rows_have_blocks_for_every_range_and_many_rows_blocks_for_all(
    shape: tuple[Any, ...], rows: int, launch: ProductLaunch
) -> None:
    assert launch_of(packed(*shape), rows) == launch
