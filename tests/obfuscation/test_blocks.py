"""λ+1 values of one block say nothing of which is real, and differ by less than ε (Theorem 5.1)."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloister.obfuscation.gqs import Candidate, Distance, Quantization, Value
from cloister.obfuscation.index import Prf
from cloister.obfuscation.quantized import block_with, blocks_of, drawn, runs_of
from tests.examples import examples
from tests.obfuscation.rerun import log_likelihood

members_drawn = st.lists(st.tuples(st.floats(-12, -0.01), st.integers(0, 5)), min_size=1, max_size=60).map(
    lambda pairs: [Candidate(((at, word),), logprob) for at, (logprob, word) in enumerate(pairs)]
)


def all_apart(values: tuple[Value, ...]) -> frozenset[str]:
    return frozenset((str(values),))


def one_word(values: tuple[Value, ...]) -> frozenset[str]:
    """Some members have a word in common."""
    return frozenset((str(values[0][1]), f"{values[0][0]} in all"))


@given(
    members_drawn,
    st.integers(2, 9),
    st.sampled_from([0.02, 0.1, 1.0]),
    st.sampled_from(["absolute", "relative"]),
    st.booleans(),
)
@examples(60)
def test_theorem_5_1_holds_for_every_two_of_a_block_and_every_member_has_the_same_block(
    members: list[Candidate], size: int, epsilon: float, distance: Distance, shared: bool
) -> None:
    by, words = Quantization(epsilon, distance=distance), one_word if shared else all_apart
    for one in members:
        block = block_with(one.values, members, by, size, words)
        for other in block:
            assert block_with(other.values, list(reversed(members)), by, size, words) == block
        for a, b in combinations(block, 2):
            gap = abs(a.logprob - b.logprob)
            assert (gap if distance == "relative" else abs(math.exp(a.logprob) - math.exp(b.logprob))) < epsilon
            assert not words(a.values) & words(b.values)
        assert not block or one in block
        assert shared or len(block) < 2 * size


@given(members_drawn, st.integers(2, 9))
@examples(60)
def test_without_words_in_common_nobody_is_left_out_of_a_run_that_is_long_enough(
    members: list[Candidate], size: int
) -> None:
    for run in runs_of(members, Quantization(0.1, distance="absolute")):
        blocks = blocks_of(run, size, all_apart)
        assert [one for block in blocks for one in block] == run
        assert all(len(block) >= min(size, len(run)) for block in blocks)


def test_each_set_is_as_likely_whichever_of_it_is_real() -> None:
    block = [Candidate(((at,),), -1.0) for at in range(5)]
    counts: Counter[tuple[int, frozenset[int]]] = Counter()
    for real in range(5):
        for number in range(600):
            chosen = drawn(block[real].values, block, 2, Prf(bytes([7] * 32)), b"%d of %d" % (number, real))
            counts[real, frozenset((real, *(one.values[0][0] for one in chosen)))] += 1
    assert len(counts) == 5 * math.comb(4, 2)
    expected = 600 * math.exp(log_likelihood(block, 2))
    assert expected == pytest.approx(100) and all(60 < count < 145 for count in counts.values())


def test_the_same_secret_draws_the_same() -> None:
    block = [Candidate(((at,),), -1.0) for at in range(20)]
    draws = [drawn(((3,),), block, 7, Prf(bytes([key]) * 32), b"x") for key in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2] and all(len(draw) == 7 for draw in draws)
    assert len(drawn(((3,),), block[:5], 7, Prf(bytes(32)), b"x")) == 4
    assert block_with(((99,),), block, Quantization(), 3, all_apart) == []


def test_lemma_9_1() -> None:
    """Products of n factors that differ by less than ε/n each differ by less than ε. `runs_of` checks the product."""
    by = Quantization(0.1, distance="absolute")
    members = [Candidate(((at,),), math.log(p)) for at, p in enumerate((0.5, 0.45, 0.401, 0.399, 0.31, 0.1))]
    assert [len(run) for run in runs_of(members, by)] == [3, 2, 1]
