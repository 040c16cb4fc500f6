"""The rows of one step, laid out for the kernels: which token, where in its sequence, where in the cache.

Rows of several sequences are in one flat list; a row knows its sequence only through its block table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

BLOCK_TOKENS = 16
QUERIES_PER_TILE = 16


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a span is that this process does not hold: a slot of a vault, behind a link."""

    link: int
    slot: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a sequence's positions fall into segments, each in blocks of its own, and how it is rotated.

    Positions count the tokens this process holds: 0 .. public-1 are the public span, public .. prompt-1 the private
    one, those from `prompt` on the generated tokens. With `remote` the private span is in a vault and is not counted.
    Attention is computed over each segment by itself and merged (Petridish, Theorem 1), in every process and at every
    level, so that the levels agree bit for bit.

    Prompt tokens are rotated by their place in the whole prompt. Generated token t is rotated by origin + t; a query
    of it to the prompt is rotated by `rotation` more, to its place after the prompt. A service that starts at origin 0
    and holds nothing of the prompt needs neither number: it does not learn the length.
    """

    prompt: int
    public: int = 0
    origin: int = 0
    rotation: int = 0
    remote: Remote | None = None

    def blocks(self, positions: int) -> int:
        """How many blocks hold the first so many positions."""
        public, prompt = min(self.public, positions), min(self.prompt, positions)
        return sum(-(-length // BLOCK_TOKENS) for length in (public, prompt - public, positions - prompt))


WHOLE = Layout(prompt=2**30)
"""One segment: a prompt without end."""


class Wanted(Enum):
    """The rows of a chunk whose logits are wanted."""

    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, repr=False)
class Chunk:
    """Consecutive tokens of one sequence, to be computed in one step: a part of a prompt, or one decoded token.

    `blocks` covers positions 0 .. start+len(tokens)-1 in the layout's order; positions before `start` are in the cache
    already. A chunk may span segments.
    """

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    layout: Layout = WHOLE
    wanted: Wanted = Wanted.NONE


@dataclass(frozen=True, slots=True, repr=False)
class RemoteRows:
    """The rows that need one vault: their places in the batch, and for each its slot and how many tokens precede it."""

    link: int
    rows: Sequence[int]
    asks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """One step's rows. A span is the rows of one chunk in one segment; tiles are neighbouring rows of one span, which
    share a pass over the cache. `segments` is [span, 3, (first block, length, shift, rotated)]: see attention.h."""

    rows: int
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    span: torch.Tensor
    tables: torch.Tensor
    segments: torch.Tensor
    counts: torch.Tensor
    rotations: torch.Tensor
    tile_row: torch.Tensor
    tile_rows: torch.Tensor
    remotes: tuple[RemoteRows, ...] = ()
    asks: torch.Tensor | None = None
    """For a recorded step: `remotes` as the device's kernels read them (LinkAsker.aim)."""


SEGMENTS = 3
ASKS = 4
"""Numbers that a device may need for each row of a recorded step that asks."""
ENDLESS = 2**30


class _Span(NamedTuple):
    chunk: Chunk
    first: int
    end: int
    position: int
    """The first row's rotary position."""
    block: int
    """Where its own segment's blocks begin in the table."""
    within: int
    """The first row's place in its own segment."""
    segments: tuple[tuple[int, int, int, int], ...]
    rotation: int = 0


def _spans(chunk: Chunk) -> Iterator[_Span]:
    layout, start, end = chunk.layout, chunk.start, chunk.start + len(chunk.tokens)
    public, prompt = layout.public, layout.prompt
    after_public = -(-public // BLOCK_TOKENS)
    if start < public:
        yield _Span(chunk, start, min(end, public), start, 0, start, ((0, ENDLESS, 0, 0),))
    if end > public and start < prompt:
        first = max(start, public)
        seen = ((0, public, 0, 0),) if public else ()
        own = (after_public, ENDLESS, -public, 0)
        yield _Span(chunk, first, min(end, prompt), first, after_public, first - public, (*seen, own))
    if end > prompt:
        first = max(start, prompt)
        rotated = int(layout.rotation != 0)
        parts = []
        if public:
            parts.append((0, public, layout.rotation, rotated))
        if prompt > public:
            parts.append((after_public, prompt - public, layout.rotation - public, rotated))
        block = layout.blocks(prompt)
        parts.append((block, ENDLESS, -layout.origin, 0))
        within = first - prompt
        yield _Span(chunk, first, end, layout.origin + within, block, within, tuple(parts), layout.rotation)


def lay_out(chunks: Sequence[Chunk], queries_per_row: int) -> Batch:
    """The batch for these chunks; `queries_per_row` is how many query heads share one KV head."""
    spans = [span for chunk in chunks for span in _spans(chunk)]
    lengths = np.array([span.end - span.first for span in spans], dtype=np.int64)
    rows = int(lengths.sum())
    offsets = np.cumsum(lengths) - lengths
    span_of = np.repeat(np.arange(len(spans), dtype=np.int32), lengths)
    step = np.arange(rows, dtype=np.int64) - offsets[span_of]
    positions = step + np.array([span.position for span in spans])[span_of]
    within = step + np.array([span.within for span in spans])[span_of]
    tables = _padded([span.chunk.blocks for span in spans])
    segments = np.array([_filled_up(span.segments) for span in spans], dtype=np.int32).reshape(-1, SEGMENTS, 4)
    own = np.array([span.block for span in spans])[span_of] + within // BLOCK_TOKENS
    if rows and int(own.max()) >= tables.shape[1]:
        raise IndexError("a chunk has fewer blocks than its layout needs")
    blocks = tables[span_of, own]
    tile = max(1, QUERIES_PER_TILE // queries_per_row)
    tile_row = np.flatnonzero(step % tile == 0).astype(np.int32)
    tile_rows = np.diff(np.append(tile_row, rows)).astype(np.int32)
    tokens = np.fromiter((token for chunk in chunks for token in chunk.tokens), dtype=np.int64, count=rows)
    return Batch(
        rows=rows,
        tokens=torch.from_numpy(tokens),
        positions=torch.from_numpy(positions.astype(np.int32)),
        slots=torch.from_numpy(blocks.astype(np.int64) * BLOCK_TOKENS + within % BLOCK_TOKENS),
        span=torch.from_numpy(span_of),
        tables=torch.from_numpy(tables),
        segments=torch.from_numpy(segments),
        counts=torch.tensor([len(span.segments) for span in spans], dtype=torch.int32),
        rotations=torch.tensor([span.rotation for span in spans], dtype=torch.int64),
        tile_row=torch.from_numpy(tile_row),
        tile_rows=torch.from_numpy(tile_rows),
        remotes=_remote_rows(spans, offsets.tolist()),
    )


def _remote_rows(spans: Sequence[_Span], offsets: Sequence[int]) -> tuple[RemoteRows, ...]:
    by_link: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    for span, offset in zip(spans, offsets, strict=True):
        remote, prompt = span.chunk.layout.remote, span.chunk.layout.prompt
        if remote is not None and span.first >= prompt:
            rows, asks = by_link.setdefault(remote.link, ([], []))
            rows += range(offset, offset + span.end - span.first)
            asks += ((remote.slot, place - prompt) for place in range(span.first, span.end))
    return tuple(RemoteRows(link, rows, asks) for link, (rows, asks) in by_link.items())


def _padded(tables: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """A row for each, as wide as the longest, with zeros behind."""
    lengths = np.array([len(table) for table in tables])
    padded = np.zeros((len(tables), int(lengths.max())), dtype=np.int32)
    count = int(lengths.sum())
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = np.fromiter(chain.from_iterable(tables), np.int32, count)
    return padded


_NO_SEGMENT = (0, 0, 0, 0)


def _filled_up(segments: tuple[tuple[int, int, int, int], ...]) -> tuple[tuple[int, int, int, int], ...]:
    return segments + (_NO_SEGMENT,) * (SEGMENTS - len(segments))
