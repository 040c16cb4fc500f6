"""How positions fall into blocks, every segment beginning one of its own, and how a step's rows are laid out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cloister.compute.layout import (
    BLOCK_TOKENS,
    ENDLESS,
    QUERIES_PER_TILE,
    Batch,
    Chunk,
    Layout,
    Remote,
    lay_out,
    tiles_of,
)


@pytest.mark.parametrize(
    ("layout", "positions", "blocks"),
    [
        (Layout(prompt=40), 40, 3),
        (Layout(prompt=40), 41, 4),
        (Layout(prompt=40), 33, 3),
        (Layout(prompt=20, public=16), 16, 1),
        (Layout(prompt=20, public=16), 20, 2),
        (Layout(prompt=20, public=17), 20, 3),
        (Layout(prompt=20, public=17), 10, 1),
        (Layout(prompt=20, public=20), 21, 3),
        (Layout(prompt=0), 17, 2),
        (Layout(prompt=2**30), 0, 0),
    ],
)
def test_so_many_positions_take_so_many_blocks(layout: Layout, positions: int, blocks: int) -> None:
    assert layout.blocks(positions) == blocks


TENSORS = {
    "tokens": torch.int64,
    "positions": torch.int32,
    "slots": torch.int64,
    "span": torch.int32,
    "tables": torch.int32,
    "segments": torch.int32,
    "counts": torch.int32,
    "rotations": torch.int64,
    "tile_row": torch.int32,
    "tile_rows": torch.int32,
}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    public = draw(st.sampled_from([0, 1, 16, 20]))
    prompt = public + draw(st.sampled_from([0, 1, 16, 21]))
    remote = draw(st.none() | st.builds(Remote, st.integers(0, 2), st.integers(0, 3)))
    return Layout(prompt, public, draw(st.sampled_from([0, 50])), draw(st.sampled_from([0, 70])), remote)


@st.composite
def chunks_of(draw: st.DrawFn, lengths: st.SearchStrategy[int]) -> list[Chunk]:
    """Chunks of random sequences, that begin in any segment. Their blocks are all different."""
    chunks = []
    for each in range(draw(st.integers(1, 6))):
        layout, length, start = draw(layouts()), draw(lengths), draw(st.integers(0, 60))
        more = draw(st.integers(0, 2))
        blocks = [100 * each + block for block in range(7, 7 + layout.blocks(start + length) + more)]
        chunks.append(Chunk([1000 * each + place for place in range(start, start + length)], start, blocks, layout))
    return chunks


def segment_of(layout: Layout, place: int) -> int:
    return (place >= layout.public) + (place >= layout.prompt)


def segments_of(chunk: Chunk) -> list[int]:
    return [segment_of(chunk.layout, chunk.start + row) for row in range(len(chunk.tokens))]


def seen_from(layout: Layout, segment: int) -> list[list[int]]:
    """The segments that a row in this one attends to, in their order."""
    public, private = layout.public, layout.prompt - layout.public
    behind_public = Layout(prompt=public).blocks(public)
    rotation = layout.rotation if segment == 2 else 0
    rotated = int(rotation != 0)
    before = [[0, public, rotation, rotated], [behind_public, private, rotation - public, rotated]][:segment]
    own = [
        [0, ENDLESS, 0, 0],
        [behind_public, ENDLESS, -public, 0],
        [layout.blocks(layout.prompt), ENDLESS, -layout.origin, 0],
    ][segment]
    return [*(part for part in before if part[1]), own]


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def remote_rows(batch: Batch) -> list[tuple[int, list[int], list[tuple[int, int]]]]:
    return [(remote.link, list(remote.rows), list(remote.asks)) for remote in batch.remotes]


@given(chunks_of(st.just(1)) | chunks_of(st.integers(1, 40)), st.sampled_from([1, 3, 4, 16, 32]))
def test_every_row_is_where_its_layout_puts_it(chunks: list[Chunk], queries: int) -> None:
    batch = lay_out(chunks, queries)
    for name, dtype in TENSORS.items():
        tensor = getattr(batch, name)
        assert tensor.dtype == dtype and tensor.is_contiguous(), name
    rows = [(chunk, place) for chunk in chunks for place in range(chunk.start, chunk.start + len(chunk.tokens))]
    assert batch.rows == len(rows) == len(batch.span) == len(batch.positions) == len(batch.slots)
    assert batch.tokens.tolist() == [token for chunk in chunks for token in chunk.tokens]
    width = max(len(chunk.blocks) for chunk in chunks)
    asked: dict[int, list[tuple[int, tuple[int, int]]]] = {}
    for row, (chunk, place) in enumerate(rows):
        layout, span = chunk.layout, int(batch.span[row])
        segment = segment_of(layout, place)
        within = place - (0, layout.public, layout.prompt)[segment]
        seen = seen_from(layout, segment)
        block = chunk.blocks[seen[-1][0] + within // BLOCK_TOKENS]
        assert batch.positions[row] == (place if segment < 2 else layout.origin + within)
        assert batch.slots[row] == block * BLOCK_TOKENS + within % BLOCK_TOKENS
        assert batch.tables[span].tolist() == [*chunk.blocks, *[0] * (width - len(chunk.blocks))]
        assert batch.segments[span].tolist() == seen + [[0] * 4] * (3 - len(seen))
        assert batch.counts[span] == len(seen)
        assert batch.rotations[span] == (layout.rotation if segment == 2 else 0)
        if layout.remote is not None and segment == 2:
            asked.setdefault(layout.remote.link, []).append((row, (layout.remote.slot, within)))
    assert remote_rows(batch) == [(link, *map(list, zip(*asks, strict=True))) for link, asks in asked.items()]


@given(chunks_of(st.just(1)) | chunks_of(st.integers(1, 40)), st.sampled_from([1, 3, 4, 16, 32]))
def test_tiles_are_as_many_rows_of_one_span_as_a_tile_takes(chunks: list[Chunk], queries: int) -> None:
    batch = lay_out(chunks, queries)
    most = max(1, QUERIES_PER_TILE // queries)
    spans = [segments_of(chunk).count(segment) for chunk in chunks for segment in range(3)]
    tiles = [min(most, length - first) for length in spans for first in range(0, length, most)]
    assert batch.tile_rows.tolist() == tiles
    assert batch.tile_row.tolist() == [sum(tiles[:before]) for before in range(len(tiles))]


@given(chunks_of(st.integers(1, 40)), st.integers(1, 50))
def test_longer_tiles_hold_every_row_once_and_rows_of_one_span(chunks: list[Chunk], most: int) -> None:
    batch = lay_out(chunks, 1)
    begins, lengths = tiles_of(batch, most)
    assert begins.dtype == lengths.dtype == torch.int32
    rows = [row for begin, length in zip(begins, lengths, strict=True) for row in range(begin, begin + length)]
    assert rows == list(range(batch.rows))
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        assert 1 <= length <= most and len(set(batch.span[begin : begin + length].tolist())) == 1
    spans = torch.bincount(batch.span)
    assert len(begins) == sum(-(-int(rows) // -(-int(rows) // -(-int(rows) // most))) for rows in spans if rows)


@given(chunks_of(st.just(1)), st.sampled_from([1, 4]))
def test_a_step_of_single_tokens_is_laid_out_as_beside_a_prompt(chunks: list[Chunk], queries: int) -> None:
    """A prompt in the step makes the whole of it take the general way."""
    width = max(len(chunk.blocks) for chunk in chunks)
    prompt = Chunk([3, 4], 0, range(width))
    alone, beside = lay_out(chunks, queries), lay_out([*chunks, prompt], queries)
    assert alone.rows == len(chunks) and beside.rows == len(chunks) + 2
    for name in TENSORS:
        assert same(getattr(alone, name), getattr(beside, name)[: len(chunks)]), name
    assert remote_rows(alone) == remote_rows(beside)


@pytest.mark.parametrize("tokens", [[5], [5, 6]])
@pytest.mark.parametrize("layout", [Layout(prompt=60), Layout(prompt=20, public=17), Layout(prompt=0)])
def test_a_chunk_needs_all_its_blocks(layout: Layout, tokens: list[int]) -> None:
    needed = layout.blocks(32 + len(tokens))
    lay_out([Chunk(tokens, 32, range(needed), layout)], 4)
    for blocks in (range(needed - 1), []):
        with pytest.raises(IndexError, match="a chunk has fewer blocks than its layout needs"):
            lay_out([Chunk(tokens, 32, blocks, layout)], 4)


@pytest.mark.parametrize(("start", "tokens"), [(1, [5]), (0, [5, 6, 7])])
def test_a_public_part_beyond_the_prompt_is_refused(start: int, tokens: list[int]) -> None:
    """A token would be in two segments, and have two rows."""
    with pytest.raises(ValueError, match=r"longer than its prompt|negative"):
        lay_out([Chunk(tokens, start, range(9), Layout(prompt=1, public=2))], 4)


def test_a_chunk_without_tokens_has_no_rows() -> None:
    empty, two = Chunk([], 3, [9]), Chunk([5, 6], 3, [8])
    batch = lay_out([empty, two], 4)
    assert batch.rows == 2 and batch.slots.tolist() == [8 * BLOCK_TOKENS + 3, 8 * BLOCK_TOKENS + 4]


def test_a_batchs_tokens_are_overwritten_at_its_end_also_where_a_step_fails() -> None:
    with pytest.raises(RuntimeError), lay_out([Chunk([5, 6], 3, [8])], 4) as batch:
        assert batch.tokens.tolist() == [5, 6]
        raise RuntimeError
    assert batch.tokens.tolist() == [0, 0]
