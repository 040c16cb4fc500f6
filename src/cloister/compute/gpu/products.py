"""How a product is laid out and launched on a GPU, as linear.cuh makes its kernels. Nothing is launched here."""

import math
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
COLUMNS_OF_MANY, THREADS_OF_MANY = 2 * TILE, 384
BARRIERS = 128  # bytes before the stages
BLOCKS_WANTED = 528
MOST_SPLITS = 8
LEAST_STEPS = 4


class Many(NamedTuple):
    """A block's rows, its stages, the sums of ranges that a lane holds in registers, its time beside the others'."""

    rows: int
    stages: int
    held: int
    takes: int

    @property
    def shared(self) -> int:
        apart = 2 * COLUMNS_OF_MANY * 4 * (self.rows // 2 - self.held) if self.held else 0
        return BARRIERS + 2 * STEP * self.stages * (COLUMNS_OF_MANY + self.rows) + apart


LINEAR_MANY = {
    "linear_whole_256": Many(256, 4, 0, takes=4),  # of a weight whose k is one range
    "linear_many_256": Many(256, 4, 96, takes=4),
    "linear_many_128": Many(128, 6, 64, takes=3),
}
PROCESSORS = 132  # with other numbers blocks may be chosen worse; bits are the same


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


def many_of(packed: Packed, rows: int) -> tuple[str, tuple[int, int]]:
    """A kernel and its grid. Tall blocks do more in their time; but a processor has one block at once, and where the
    last round of them leaves many processors idle, low ones are done sooner."""

    def grid(each: Many) -> tuple[int, int]:
        return -(-rows // each.rows), -(-tiles_of(packed) * TILE // COLUMNS_OF_MANY)

    def time(name: str) -> int:
        each = LINEAR_MANY[name]
        return each.takes * -(-math.prod(grid(each)) // PROCESSORS)

    tall = "linear_whole_256" if splits_of(packed) == 1 else "linear_many_256"
    name = min(tall, "linear_many_128", key=time)
    return name, grid(LINEAR_MANY[name])


def launch_of(packed: Packed, rows: int) -> ProductLaunch:
    """Few rows: a block for each range and a few tiles of columns. Many: one block has all ranges of its rows."""
    if rows not in FEW:
        name, grid = many_of(packed, rows)
        return ProductLaunch(name, grid, THREADS_OF_MANY, LINEAR_MANY[name].shared, 1)
    tiles, (of_weights, of_rows) = TILES_OF_FEW[rows], STAGES_OF_FEW[rows]
    splits, shared = splits_of(packed), BARRIERS + 2 * STEP * (of_weights * tiles * TILE + of_rows * rows)
    grid = (-(-tiles_of(packed) // tiles), splits)
    return ProductLaunch(f"linear_{rows}", grid, 32 * (4 * tiles + 1), shared, splits)
