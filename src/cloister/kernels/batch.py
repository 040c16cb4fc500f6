"""The rows of one step, laid out for the kernels: which token, where in its sequence, where in the cache.

Rows of several sequences stand in one flat list; a row knows its sequence only through its block table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

BLOCK_TOKENS = 16
QUERIES_PER_TILE = 16


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """Consecutive positions of one sequence: its tokens, the first one's position, and its block table."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """One step's rows. Tiles are groups of neighbouring rows of one sequence that share a pass over its cache."""

    rows: int
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    sequence: torch.Tensor
    tables: torch.Tensor
    tile_row: torch.Tensor
    tile_rows: torch.Tensor


def lay_out(runs: Sequence[Run], queries_per_row: int) -> Batch:
    """The batch for these runs; `queries_per_row` is how many query heads share one KV head."""
    lengths = np.array([len(run.tokens) for run in runs], dtype=np.int64)
    starts = np.array([run.start for run in runs], dtype=np.int64)
    rows = int(lengths.sum())
    offsets = np.cumsum(lengths) - lengths
    sequence = np.repeat(np.arange(len(runs), dtype=np.int32), lengths)
    within = np.arange(rows, dtype=np.int64) - offsets[sequence]
    positions = within + starts[sequence]
    tables = np.zeros((len(runs), max(len(run.blocks) for run in runs)), dtype=np.int32)
    for index, run in enumerate(runs):
        tables[index, : len(run.blocks)] = run.blocks
    blocks = tables[sequence, positions // BLOCK_TOKENS]
    tile = max(1, QUERIES_PER_TILE // queries_per_row)
    tile_row = np.flatnonzero(within % tile == 0).astype(np.int32)
    tile_rows = np.diff(np.append(tile_row, rows)).astype(np.int32)
    tokens = np.fromiter((token for run in runs for token in run.tokens), dtype=np.int64, count=rows)
    return Batch(
        rows=rows,
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions.astype(np.int32)),
        slots=torch.from_numpy(blocks.astype(np.int64) * BLOCK_TOKENS + positions % BLOCK_TOKENS),
        sequence=torch.from_numpy(sequence),
        tables=torch.from_numpy(tables),
        tile_row=torch.from_numpy(tile_row),
        tile_rows=torch.from_numpy(tile_rows),
    )
