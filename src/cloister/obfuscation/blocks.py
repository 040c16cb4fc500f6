"""From a class of values to the λ+1 that are sent: blocks of about equal probability, and a secret draw from one.

A class (`gqs`) is cut into blocks by a rule that does not know the real value:

1. By probability, from the likeliest on, into runs within which any two differ by less than ε (Theorem 5.1).
2. Each run, in that order, into blocks of at least λ+1 values, no two of which have a word in common.

λ values are drawn from the real one's block, uniformly and by a key that the adversary does not have. For a block of m
values, each set T of λ+1 of them has the probability 1/C(m−1, λ) under every hypothesis "this member of T is real". So
T says nothing about its real member beyond what was known of the values before. This is exact: it does not
depend on how good the model is.

What was known before remains. An adversary for whom the model's probabilities are the prior still prefers the
likeliest of T; ε bounds by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import comb, log

from cloister.obfuscation.gqs import Candidate, Value
from cloister.obfuscation.index import Prf
from cloister.obfuscation.quantization import Quantization

Words = Callable[[tuple[Value, ...]], frozenset[str]]
Block = list[Candidate]


def runs_of(members: Iterable[Candidate], by: Quantization) -> list[Block]:
    """The members, the likeliest first, cut where the next differs by ε or more from the first of its run."""
    runs: list[Block] = []
    for one in sorted(members, key=lambda one: (-one.logprob, one.values)):
        if not runs or not by.holds(one.logprob, runs[-1][0].logprob):
            runs.append([])
        runs[-1].append(one)
    return runs


def blocks_of(run: Block, size: int, words: Words) -> list[Block]:
    """A run cut into blocks of `size` or a little more. A member goes into the first block that has room and no word of
    its values; one that fits into none is in no block."""
    count = max(1, len(run) // size)
    rooms = [len(run) // count + (at < len(run) % count) for at in range(count)]
    blocks: list[Block] = [[] for _ in range(count)]
    said: list[set[str]] = [set() for _ in range(count)]
    for one in run:
        mine = words(one.values)
        for block, taken, room in zip(blocks, said, rooms, strict=True):
            if len(block) < room and not mine & taken:
                block.append(one)
                taken |= mine
                break
    return blocks


def block_with(
    secret: tuple[Value, ...], members: Iterable[Candidate], by: Quantization, size: int, words: Words
) -> Block:
    """The block that holds the secret; empty if none does."""
    run = _with(secret, runs_of(members, by))
    return _with(secret, blocks_of(run, size, words))


def drawn(secret: tuple[Value, ...], block: Block, count: int, prf: Prf, context: bytes) -> list[Candidate]:
    """`count` of the other members of the block, or all where it has no more, in a drawn order."""
    others = [one for one in block if one.values != secret]
    return prf.order(b"substitutes\0" + context, len(others)).shuffled(others)[:count]


def log_likelihood(block: Sequence[object], count: int) -> float:
    """ln of the probability that this set of `count` fakes is drawn from a block with the real one and these fakes."""
    return -log(comb(len(block) - 1, count))


def _with(secret: tuple[Value, ...], blocks: Iterable[Block]) -> Block:
    found: Iterator[Block] = (block for block in blocks if any(one.values == secret for one in block))
    return next(found, [])
