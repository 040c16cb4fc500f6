"""The rows of one step, laid out for the kernels. A row knows its sequence by its block table alone."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch


def token_tensor(tokens: Sequence[int], device: torch.device | None = None, *, room: int = 0) -> torch.Tensor:
    """int64, zeros up to `room`. The caller overwrites it, and no copy is left: ARM wheels free by mimalloc, which no
    tunable of glibc's wipes (process/hardening.py); `torch.tensor` and numpy copy on the way."""
    memory = torch.zeros(max(len(tokens), room), dtype=torch.int64)
    struct.pack_into(f"={len(tokens)}q", memory.numpy().data, 0, *tokens)
    if device is None or device.type == "cpu":
        return memory
    placed = memory.to(device)
    memory.zero_()
    return placed


_Number = TypeVar("_Number", bound=np.generic)
_Integers = npt.NDArray[np.int64]

BLOCK_TOKENS = 16
QUERIES_PER_TILE = 16


@dataclass(frozen=True, slots=True)
class Remote:
    link: int
    slot: int


@dataclass(frozen=True, slots=True)
class Layout:
    """How a sequence's positions fall into segments, which share no block, and how it is rotated: 0 .. public-1 public,
    .. prompt-1 private, then generated; with `remote` the private span is in a vault and not counted. Attention merges
    segments (Petridish, Theorem 1) at every level, so that levels agree bit for bit. Generated token t is rotated by
    origin + t; its query to the prompt by `rotation` more. A service that starts at origin 0 needs neither, and learns
    no length."""

    prompt: int
    public: int = 0
    origin: int = 0
    rotation: int = 0
    remote: Remote | None = None

    def blocks(self, positions: int) -> int:
        public, prompt = min(self.public, positions), min(self.prompt, positions)
        return _blocks(public) + _blocks(prompt - public) + _blocks(positions - prompt)


def _blocks(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


WHOLE = Layout(prompt=2**30)


class Wanted(Enum):
    NONE = "none"
    LAST = "last"
    ALL = "all"


@dataclass(frozen=True, slots=True, repr=False)
class Chunk:
    """Consecutive tokens of one sequence, to be computed in one step. A chunk may span segments. `blocks` covers
    positions 0 .. start+len(tokens)-1 in the layout's order; those before `start` are in the cache already."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]
    layout: Layout = WHOLE
    wanted: Wanted = Wanted.NONE


@dataclass(frozen=True, slots=True, repr=False)
class RemoteRows:
    """`rows`: places in the batch; `asks`: for each its slot and how many tokens precede it."""

    link: int
    rows: Sequence[int]
    asks: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """A span: one chunk's rows in one segment; tiles are read in one pass. `segments`: [span, 3, (first block, length,
    shift, rotated)] (attention.h). `with` overwrites the tokens at its end (token_tensor)."""

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
    asks: torch.Tensor | None = None  # for a recorded step: `remotes` as the device's kernels read them (LinkAsker.aim)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.tokens.zero_()

    def here(self) -> "tuple[Batch, torch.Tensor]":
        """The rows that ask no vault, without their tokens, and their places."""
        kept = torch.ones(self.rows, dtype=torch.bool)
        kept[[row for remote in self.remotes for row in remote.rows]] = False
        places, tile = kept.nonzero()[:, 0], self.tile_row.long()
        ahead = (kept.cumsum(0) - 1)[tile][kept[tile]].int()  # a tile's rows are of one span, so all or none ask
        values = {name: getattr(self, name)[places] for name in ("positions", "slots", "span")}
        tiles = {"tile_row": ahead, "tile_rows": self.tile_rows[kept[tile]]}
        return replace(self, rows=len(places), tokens=self.tokens[:0], remotes=(), **values, **tiles), places


SEGMENTS = 3
ASKS = 4  # numbers that a device may need for each row of a recorded step that asks
ENDLESS = 2**30

_SEGMENT_NUMBERS = 4
_NO_SEGMENTS = (0,) * (SEGMENTS * _SEGMENT_NUMBERS)


class _Spans:
    """Flat lists of numbers, each of which becomes an array in a single call."""

    NUMBERS = 6

    def __init__(self) -> None:
        self.tables: list[Sequence[int]] = []
        # rows; the first row's rotary position and place in its segment; its first block; segments; rotation
        self.numbers: list[int] = []
        self.segments: list[int] = []  # for each span the numbers of SEGMENTS segments, with zeros behind

    def add(self, chunk: Chunk) -> None:
        layout, start, end = chunk.layout, chunk.start, chunk.start + len(chunk.tokens)
        public, prompt = layout.public, layout.prompt
        if start < public:
            self._add(chunk, min(end, public) - start, start, start, (0, ENDLESS, 0, 0))
        if end > public and start < prompt:
            first = max(start, public)
            seen = (0, public, 0, 0) if public else ()
            segments = (*seen, _blocks(public), ENDLESS, -public, 0)
            self._add(chunk, min(end, prompt) - first, first, first - public, segments)
        if end > prompt:
            within = max(start - prompt, 0)
            segments = _seen_by_the_generated(layout)
            self._add(chunk, end - prompt - within, layout.origin + within, within, segments, layout.rotation)

    def _add(
        self, chunk: Chunk, rows: int, position: int, within: int, segments: tuple[int, ...], rotation: int = 0
    ) -> None:
        own = segments[-_SEGMENT_NUMBERS]
        self.tables.append(chunk.blocks)
        self.numbers += (rows, position, within, own, len(segments) // _SEGMENT_NUMBERS, rotation)
        self.segments += segments
        self.segments += _NO_SEGMENTS[len(segments) :]


def _seen_by_the_generated(layout: Layout) -> tuple[int, ...]:
    public, private, rotation = layout.public, layout.prompt - layout.public, layout.rotation
    rotated = int(rotation != 0)
    block = _blocks(public)
    prompt: tuple[int, ...] = (0, public, rotation, rotated) if public else ()
    if private > 0:
        prompt += (block, private, rotation - public, rotated)
        block += _blocks(private)
    return (*prompt, block, ENDLESS, -layout.origin, 0)


class _Rows(NamedTuple):
    """For each row its span, rotary position, place in its segment and that segment's first block; and the tiles."""

    span: npt.NDArray[np.int32]
    position: _Integers
    within: _Integers
    block: _Integers
    tile_row: npt.NDArray[np.int32]
    tile_rows: npt.NDArray[np.int32]


def _rows(lengths: _Integers, firsts: _Integers, tile: int) -> _Rows:
    span = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    step = np.arange(len(span)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    position, within, block = firsts[:, span]
    tile_row = np.flatnonzero(step % tile == 0)
    tile_rows = np.minimum(lengths[span[tile_row]] - step[tile_row], tile)
    return _Rows(span, position + step, within + step, block, tile_row.astype(np.int32), tile_rows.astype(np.int32))


def _rows_of_decoding(firsts: _Integers) -> _Rows:
    """The same where each span is one row. Every decode step waits for it, so it is written out for speed."""
    count = firsts.shape[1]
    ordinals = np.arange(count, dtype=np.int32)
    position, within, block = firsts
    return _Rows(ordinals, position, within, block, ordinals.copy(), np.ones(count, dtype=np.int32))


def lay_out(chunks: Sequence[Chunk], queries_per_row: int) -> Batch:
    """`queries_per_row` is how many query heads share one KV head."""
    spans = _Spans()
    tokens: list[int] = []
    for chunk in chunks:
        spans.add(chunk)
        tokens += chunk.tokens
    numbers = _array(spans.numbers, np.int64).reshape(-1, _Spans.NUMBERS).T
    lengths, firsts, counts, rotations = numbers[0], numbers[1:4], numbers[4], numbers[5]
    if (lengths == 1).all():
        rows = _rows_of_decoding(firsts)
    else:
        rows = _rows(lengths, firsts, max(1, QUERIES_PER_TILE // queries_per_row))
    if len(rows.span) != len(tokens):
        raise ValueError("a layout's public part is longer than its prompt")
    tables = _padded(spans.tables)
    slots = _slots(rows, tables)
    return Batch(
        rows=len(tokens),
        tokens=token_tensor(tokens),
        positions=torch.from_numpy(rows.position.astype(np.int32)),
        slots=torch.from_numpy(slots),
        span=torch.from_numpy(rows.span),
        tables=torch.from_numpy(tables),
        segments=torch.from_numpy(_array(spans.segments, np.int32).reshape(-1, SEGMENTS, _SEGMENT_NUMBERS)),
        counts=torch.from_numpy(counts.astype(np.int32)),
        rotations=torch.from_numpy(rotations.copy()),
        tile_row=torch.from_numpy(rows.tile_row),
        tile_rows=torch.from_numpy(rows.tile_rows),
        remotes=_remote_rows(chunks),
    )


def tiles_of(batch: Batch, most: int) -> tuple[torch.Tensor, torch.Tensor]:
    """`tile_row` and `tile_rows` with `most` rows in a tile: those of a span are about equally long."""
    firsts = np.flatnonzero(np.diff(batch.span.numpy(), prepend=-1))
    lengths = np.diff(firsts, append=batch.rows)
    longest = -(-lengths // -(-lengths // most))
    length, tile = np.repeat(lengths, lengths), np.repeat(longest, lengths)
    step = np.arange(batch.rows) - np.repeat(firsts, lengths)
    begin = np.flatnonzero(step % tile == 0)
    rows = np.minimum(tile, length - step)[begin]
    return torch.from_numpy(begin.astype(np.int32)), torch.from_numpy(rows.astype(np.int32))


def _slots(rows: _Rows, tables: npt.NDArray[np.int32]) -> _Integers:
    own = rows.block + rows.within // BLOCK_TOKENS
    if len(own) and int(own.max()) >= tables.shape[1]:
        raise IndexError("a chunk has fewer blocks than its layout needs")
    return tables[rows.span, own].astype(np.int64) * BLOCK_TOKENS + rows.within % BLOCK_TOKENS


def _remote_rows(chunks: Sequence[Chunk]) -> tuple[RemoteRows, ...]:
    by_link: dict[int, tuple[list[int], list[tuple[int, int]]]] = {}
    row = 0
    for chunk in chunks:
        remote, length, before = chunk.layout.remote, len(chunk.tokens), chunk.start - chunk.layout.prompt
        if remote is not None and before + length > 0:
            rows, asks = by_link.setdefault(remote.link, ([], []))
            slot = remote.slot
            for step in range(max(-before, 0), length):
                rows.append(row + step)
                asks.append((slot, before + step))
        row += length
    return tuple([RemoteRows(link, rows, asks) for link, (rows, asks) in by_link.items()])


def _padded(tables: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    lengths = [len(table) for table in tables]
    width = max(lengths)
    blocks = _array(list(chain.from_iterable(tables)), np.int32)
    if len(blocks) == len(tables) * width:
        return blocks.reshape(len(tables), width)
    padded = np.zeros((len(tables), width), dtype=np.int32)
    padded[np.arange(width) < np.array(lengths)[:, None]] = blocks
    return padded


def _array(numbers: list[int], dtype: type[_Number]) -> npt.NDArray[_Number]:
    return np.fromiter(numbers, dtype, len(numbers))
