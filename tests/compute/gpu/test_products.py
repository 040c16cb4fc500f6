"""How products are launched on a GPU: numbers that follow from shapes, checked without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cloister.compute.gpu.products import LINEAR_MANY, MANY, TILE, ProductLaunch, launch_of, splits_of
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
        ((6144, 4096), 384, ProductLaunch("linear_many_256", (2, 48), 384, 229504, 1)),
        ((4096, 14336), 384, ProductLaunch("linear_many_128", (3, 32), 384, 196736, 1)),
        ((28672, 4096, "silu"), 2048, ProductLaunch("linear_whole_256", (8, 224), 384, 196736, 1)),
        ((128256, 4096), 256, ProductLaunch("linear_whole_256", (1, 1002), 384, 196736, 1)),
        ((960, 576), 256, ProductLaunch("linear_many_128", (2, 8), 384, 196736, 1)),
    ],
)
def test_few_rows_have_blocks_for_every_range_and_many_rows_blocks_for_all(
    shape: tuple[Any, ...], rows: int, launch: ProductLaunch
) -> None:
    assert launch_of(packed(*shape), rows) == launch


@pytest.mark.parametrize("shape", [(6144, 4096), (28672, 4096, "silu"), (960, 576), (64, 256), (320, 4096)])
def test_blocks_of_many_rows_cover_all_and_begin_inside(shape: tuple[Any, ...]) -> None:
    """The last block of a column ends with the rows: it begins earlier where they are no multiple of its own."""
    for rows in range(MANY, 2049, MANY)[1:]:
        launch = launch_of(packed(*shape), rows)
        each = LINEAR_MANY[launch.name].rows
        down, across = launch.grid
        assert each <= rows and (down - 1) * each < rows <= down * each
        assert (across - 1) * 2 * TILE < shape[0] <= across * 2 * TILE
        assert ("whole" in launch.name) <= (splits_of(packed(*shape)) == 1), "it adds no ranges"


def test_tall_blocks_where_they_leave_few_processors_idle() -> None:
    """By rounds of 132 blocks: with 512 rows 128 low ones are one round, and 64 tall ones leave half."""
    taken = [launch_of(packed(4096, 4096), rows).name for rows in (256, 512, 640, 1024, 2048)]
    assert taken == ["linear_many_128"] * 2 + ["linear_many_256"] * 3
