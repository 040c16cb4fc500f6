"""Continuations of one beginning: each has the log-probabilities it would have alone, and nothing of them is left."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from cloister.compute import layout
from cloister.compute.host_cache import BLOCK_TOKENS, HostCache
from cloister.compute.reference import ReferenceDevice, ReferenceKernels
from cloister.engine import continuations
from cloister.engine.continuations import Continuations, GrowingBranches
from cloister.errors import PromptTooLong
from cloister.models.decoder import Decoder, RawParts
from cloister.models.fused import FusedDecoder
from tests.models.small_llama import llama_config, llama_weights

BEGINNING = list(range(5, 42))
VOCABULARY = 64


@pytest.fixture(autouse=True)
def whole_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the size that caches have; other tests of engines have smaller ones."""
    monkeypatch.setattr(layout, "BLOCK_TOKENS", BLOCK_TOKENS)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    config = llama_config(VOCABULARY, hidden=32, heads=2, kv_heads=1, tied=True)
    kernels = ReferenceKernels(torch.float32)
    return FusedDecoder(config, RawParts(llama_weights(config), kernels), ReferenceDevice(kernels), 256)


def held(decoder: Decoder, blocks: int) -> tuple[Continuations, HostCache]:
    cache = HostCache(decoder.cache_shape, blocks, torch.float32)
    return Continuations(decoder, cache), cache


def rows(branches: GrowingBranches, parents: list[int], tokens: list[list[int]]) -> continuations.LogProbs:
    return np.concatenate(list(branches.grow(parents, tokens)))


def first_row(branches: GrowingBranches) -> continuations.LogProbs:
    *_, row = branches.first()
    assert not branches.left
    return row


def test_a_branch_is_computed_as_if_it_were_alone(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over several blocks, with parents that have many children or none, and tokens by ones and by threes."""
    monkeypatch.setattr(continuations, "ROWS", 4)
    monkeypatch.setattr(continuations, "CHUNK_TOKENS", 16)
    draw = random.Random(1)
    model, cache = held(decoder, 64)
    alone, _ = held(decoder, 16)
    with model.branches(BEGINNING, 0.7) as branches:
        said: list[list[int]] = [[]]
        found = first_row(branches)
        for step in range(16):
            parents = [draw.randrange(len(said)) for _ in range(6)]
            tokens = [[draw.randrange(VOCABULARY) for _ in range(3 if step % 5 == 4 else 1)] for _ in range(6)]
            said = [said[parent] + new for parent, new in zip(parents, tokens, strict=True)]
            found = rows(branches, parents, tokens)
        assert len(said[0]) > 16
    for number in (0, 3):
        with alone.branches(BEGINNING, 0.7) as single:
            first_row(single)
            for token in said[number]:
                straight = rows(single, [0], [[token]])
        assert np.array_equal(straight[0], found[number])
    assert np.allclose(np.exp(found).sum(axis=1), 1, atol=1e-4)
    assert not cache._keys.any() and not cache._values.any(), "keys and values are wiped"
    assert model.pool.free == 64


def test_the_beginning_is_computed_as_the_engine_does(decoder: Decoder) -> None:
    model, _ = held(decoder, 16)
    with model.branches(BEGINNING, 1.0) as branches, torch.no_grad():
        first = first_row(branches)
        with model.branches(BEGINNING[:-1], 1.0) as shorter:
            first_row(shorter)
            assert np.allclose(rows(shorter, [0], [BEGINNING[-1:]]), first, atol=1e-4)


def test_too_many_branches_are_refused_and_leave_nothing(decoder: Decoder) -> None:
    model, cache = held(decoder, 8)
    with pytest.raises(PromptTooLong, match="memory"), model.branches(BEGINNING, 1.0) as branches:
        first_row(branches)
        rows(branches, [0] * 9, [[1]] * 9)
    assert model.pool.free == 8 and not cache._keys.any()


@pytest.mark.parametrize("most", [None, 3, 11])
def test_rows_have_the_likelihood_they_would_have_token_by_token(
    decoder: Decoder, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of several lengths, in pieces as small as others allow, some of one token."""
    monkeypatch.setattr(continuations, "ROWS", 4)
    monkeypatch.setattr(continuations, "CHUNK_TOKENS", 40)
    draw = random.Random(2)
    scored = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in (1, 2, 17, 16, 33, 60)]
    model, cache = held(decoder, 64)
    model.at_once = most
    work, pieces = model.likelihoods(BEGINNING, scored), []
    try:
        while True:
            pieces.append(next(work))
    except StopIteration as end:
        found = end.value
    for row, likely in zip(scored, found, strict=True):
        expected = 0.0
        with held(decoder, 64)[0].branches(BEGINNING, 1.0) as alone:
            scores = first_row(alone)
            for token in row:
                expected += float(scores[0, token])
                scores = rows(alone, [0], [[token]])
        assert likely == pytest.approx(expected, abs=1e-4)
    assert sum(pieces) and not cache._keys.any() and not cache._values.any(), "wiped"


def test_scores_take_few_rows_of_logits_at_a_time(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealed vault has 64 MiB beyond its keys and values: 128 rows of a real vocabulary, twice, are 50."""
    model, _ = held(decoder, 64)
    whole, sizes = decoder.logits, list[int]()

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return whole(hidden)

    monkeypatch.setattr(decoder, "logits", logits)
    values = [[one, *range(2, 12)] for one in range(30)]
    for size in model.likelihoods(BEGINNING, values):
        assert isinstance(size, int)
    assert sum(sizes) > 200 and max(sizes) <= 16
