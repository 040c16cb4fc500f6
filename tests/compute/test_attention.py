"""Paged attention against torch's own, and a query against itself in other company."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from cloister.compute.base import CacheShape, Kernels, Step
from cloister.compute.host_cache import HostCache
from cloister.compute.layout import BLOCK_TOKENS, Batch, Chunk, lay_out
from tests.examples import examples

BLOCKS = 64


def blocks_for(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)


class Story:
    """Some sequences with their keys, values and queries, and a cache to hold them."""

    def __init__(self, kernels: Kernels, lengths: list[int], heads: int, kv_heads: int, dim: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.kernels, self.heads, self.kv_heads, self.dim = kernels, heads, kv_heads, dim
        self.q = [torch.randn(n, heads, dim, generator=draw) for n in lengths]
        self.k = [torch.randn(n, kv_heads, dim, generator=draw) for n in lengths]
        self.v = [torch.randn(n, kv_heads, dim, generator=draw) for n in lengths]
        self.cache = HostCache(CacheShape(1, kv_heads, dim), BLOCKS, kernels.dtype)
        free = torch.randperm(BLOCKS, generator=draw).tolist()
        self.tables = [[free.pop() for _ in range(blocks_for(n))] for n in lengths]

    def step(self, spans: list[tuple[int, int, int]], window: int = 0) -> torch.Tensor:
        """One step over (sequence, start, end) spans: store, then attend."""
        chunks = [Chunk([0] * (end - start), start, self.tables[s]) for s, start, end in spans]
        batch: Batch = lay_out(chunks, self.heads // self.kv_heads)
        k, v, q = (torch.cat([each[s][start:end] for s, start, end in spans]) for each in (self.k, self.v, self.q))
        self.kernels.store(k, v, 0, batch, self.cache)
        return self.kernels.attention(q, 0, Step(batch, self.cache), self.dim**-0.5, window).clone()

    def expected(self, sequence: int, window: int = 0) -> torch.Tensor:
        dtype, group = self.kernels.dtype, self.heads // self.kv_heads
        k, v = (each[sequence].to(dtype).double().repeat_interleave(group, 1) for each in (self.k, self.v))
        n = len(k)
        distance = torch.arange(n)[:, None] - torch.arange(n)[None]
        seen = (distance >= 0) & ((distance < window) if window else True)
        scores = torch.einsum("qhd,khd->hqk", self.q[sequence].double(), k) * self.dim**-0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v).reshape(n, -1)


def random_chunks(draw: st.DataObject, total: int) -> list[tuple[int, int]]:
    cuts = sorted(set(draw.draw(st.lists(st.integers(1, max(1, total - 1)), max_size=6))) - {total})
    edges = [0, *[cut for cut in cuts if cut < total], total]
    return list(itertools.pairwise(edges))


shapes = st.sampled_from(
    [(1, 1, 16), (6, 2, 16), (9, 3, 64), (4, 4, 32), (16, 1, 16), (40, 1, 16), (2, 1, 80), (2, 2, 256)]
)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes, length=st.integers(1, 90), window=st.sampled_from([0, 1, 7, 16, 40]), seed=st.integers(0, 99))
def test_equals_exact_attention(
    kernels: Kernels, shape: tuple[int, int, int], length: int, window: int, seed: int
) -> None:
    story = Story(kernels, [length], *shape, seed)
    out = story.step([(0, 0, length)], window)
    torch.testing.assert_close(out.double(), story.expected(0, window), rtol=1e-4, atol=1e-5)


@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=shapes, lengths=st.lists(st.integers(1, 70), min_size=2, max_size=5), data=st.data())
def test_a_query_is_the_same_however_it_came(
    kernels: Kernels, shape: tuple[int, int, int], lengths: list[int], data: st.DataObject
) -> None:
    """In one pass, in any chunks, and among any neighbours: bit for bit."""
    window = data.draw(st.sampled_from([0, 24]))
    alone = [Story(kernels, lengths, *shape, 7).step([(s, 0, n)], window) for s, n in enumerate(lengths)]
    together = Story(kernels, lengths, *shape, 7)
    pending = {s: random_chunks(data, n) for s, n in enumerate(lengths)}
    got: dict[int, list[torch.Tensor]] = {s: [] for s in pending}
    while any(pending.values()):
        spans = [(s, *chunks.pop(0)) for s, chunks in pending.items() if chunks]
        rows = together.step(spans, window).split([end - start for _, start, end in spans])
        for (s, _, _), out in zip(spans, rows, strict=True):
            got[s].append(out)
    for s, whole in enumerate(alone):
        assert torch.equal(torch.cat(got[s]), whole)


def test_large_scores_do_not_overflow(kernels: Kernels) -> None:
    story = Story(kernels, [40], 2, 1, 16, 3)
    story.q[0] *= 500
    out = story.step([(0, 0, 40)])
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double(), story.expected(0), rtol=1e-3, atol=1e-3)


def test_what_another_sequence_left_in_a_block_is_never_read(kernels: Kernels) -> None:
    """Even values that are not numbers leave no trace: a weight of zero times one of them would."""
    clean, reused = (Story(kernels, [21], 6, 2, 16, 5) for _ in range(2))
    for layer in (reused.cache.keys(0), reused.cache.values(0)):
        layer.fill_(torch.nan)
    assert torch.equal(reused.step([(0, 0, 21)]), clean.step([(0, 0, 21)]))


def test_blocks_outside_the_cache_never_reach_c(native: Kernels) -> None:
    story = Story(native, [20], 2, 1, 16, 0)
    story.tables[0][1] = BLOCKS
    with pytest.raises(IndexError):
        story.step([(0, 0, 20)])
