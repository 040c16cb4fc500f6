"""How a product is laid out and launched on a GPU, as linear.cuh makes its kernels. Nothing is launched here."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from cloister.compute.layer import Packed

FEW = (8, 16, 32, 64, 96, 128)  # row counts the kernels for few rows are made for
MANY = 128


def padded_rows(rows: int) -> int:
    for few in FEW:
        if rows <= few:
            return few
    return -(-rows // MANY) * MANY


def capacity(rows: int) -> int:
    """Workspaces of many rows come in powers of two, so that there are few of them."""
    rows = padded_rows(rows)
    return rows if rows <= FEW[-1] else 1 << (rows - 1).bit_length()


@dataclass(frozen=True, slots=True)
class Widths:
    hidden: int
    queries: int
    inner: int
    sums_of_few: int
    sums_of_many: int


@dataclass(frozen=True, slots=True, repr=False)
class Workspace:
    """`normed`, `attended` and `gated` are bf16 in the order a product reads; `sums` is a product's result."""

    normed: torch.Tensor
    q: torch.Tensor
    attended: torch.Tensor
    gated: torch.Tensor
    sums: torch.Tensor

    @classmethod
    def of(cls, rows: int, widths: Widths) -> "Workspace":
        def empty(width: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(rows * width, dtype=dtype, device="cuda")

        few = rows <= FEW[-1]
        return cls(
            normed=empty(widths.hidden, torch.bfloat16),
            q=empty(widths.queries, torch.float32),
            attended=empty(widths.queries, torch.bfloat16),
            gated=empty(widths.inner, torch.bfloat16),
            sums=empty(widths.sums_of_few if few else widths.sums_of_many, torch.float32),
        )

    def wipe(self) -> None:
        for field in fields(self):
            getattr(self, field.name).zero_()


TILE = 64
STEP = 64
TILES_OF_FEW = {8: 1, 16: 1, 32: 2, 64: 2, 96: 2, 128: 2}
STAGES_OF_FEW = {8: (5, 5), 16: (4, 4), 32: (4, 4), 64: (4, 3), 96: (4, 3), 128: (3, 3)}  # of weights, and of rows
TILES_OF_MANY, STAGES_OF_MANY = 2, 4
BARRIERS = 128  # bytes before the stages
BLOCKS_WANTED = 528
MOST_SPLITS = 8
LEAST_STEPS = 4


class ProductLaunch(NamedTuple):
    name: str
    grid: tuple[int, int]
    threads: int
    shared: int
    splits: int  # ranges of k that the result is still in


def tiles_of(packed: Packed) -> int:
    return -(-packed.columns // TILE)


def splits_of(packed: Packed) -> int:
    """By the weight's shape alone, so that it is the same for any number of rows. None for a gated weight."""
    if packed.gate:
        return 1
    return max(1, min(BLOCKS_WANTED // tiles_of(packed), MOST_SPLITS, packed.k // STEP // LEAST_STEPS))


def launch_of(packed: Packed, rows: int) -> ProductLaunch:
    """Few rows: a block for each range and a few tiles of columns. Many: one block has all ranges of its rows."""
    if rows in FEW:
        tiles, (of_weights, of_rows) = TILES_OF_FEW[rows], STAGES_OF_FEW[rows]
        splits, name = splits_of(packed), f"linear_{rows}"
        grid = (-(-tiles_of(packed) // tiles), splits)
        columns_and_rows = of_weights * tiles * TILE + of_rows * rows
    else:
        tiles, splits, name = TILES_OF_MANY, 1, "linear_many"
        grid = (rows // MANY, -(-tiles_of(packed) // tiles))
        columns_and_rows = STAGES_OF_MANY * (tiles * TILE + MANY)
    return ProductLaunch(name, grid, 32 * (4 * tiles + 1), BARRIERS + 2 * STEP * columns_and_rows, splits)
