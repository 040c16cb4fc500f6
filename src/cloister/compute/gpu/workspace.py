"""Scratch memory for a number of rows, taken once and kept: recorded steps hold its addresses."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

FEW = (8, 16, 32, 64, 96, 128)  # row counts the kernels for few rows are made for
MANY = 128


def padded_rows(rows: int) -> int:
    """The results of the padding are not read."""
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
    def of(cls, rows: int, widths: Widths) -> Workspace:
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
