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


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a span lives that this process does not hold: a slot of a vault, behind a link."""

    link: int
    slot: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a sequence's positions fall into segments, each in blocks of its own, and how it is rotated.

    Positions count the tokens this process holds: 0 .. public-1 are the public span, public .. prompt-1 the private
    one, those from `prompt` on the generated tokens. With `remote` the private span is in a vault and counts nothing
    here. Attention is computed over each segment by itself and merged (Petridish, Theorem 1), in every process and at
    every level alike, so that the levels agree bit for bit.

    Prompt tokens are rotated by their place in the whole prompt. Generated token t is rotated by origin + t; a query
    of it that looks at the prompt is turned on by `turn`, the rest of the way to its place after the prompt. A service
    that starts at origin 0 and holds nothing of the prompt needs neither number: it does not learn the length.
    """

    prompt: int
    public: int = 0
    origin: int = 0
    turn: int = 0
    remote: Remote | None = None

    def blocks(self, positions: int) -> int:
        """How many blocks hold the first so many positions."""
        bounds = (0, self.public, self.prompt)
        ends = (self.public, self.prompt, positions)
        lengths = (min(end, positions) - start for start, end in zip(bounds, ends, strict=True))
        return sum(-(-max(0, length) // BLOCK_TOKENS) for length in lengths)


WHOLE = Layout(prompt=2**30)
"""All one segment: a prompt without end."""


@dataclass(frozen=True, slots=True, repr=False)
class Run:
    """Consecutive positions of one sequence: its tokens, the first one's position, its block table and its layout."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    layout: Layout = WHOLE


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
