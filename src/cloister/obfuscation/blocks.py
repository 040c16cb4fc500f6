"""From a class of values to the λ+1 that are sent: blocks of about equal probability, and a secret draw from one.

Runs within which any two differ by less than ε (Theorem 5.1) are cut into blocks of at least λ+1 values without a
common word, not knowing the real one. A secret key draws λ values from its block of m: each set T of λ+1 has the
probability 1/C(m−1, λ) whichever member is real, so T reveals nothing new, however good the model. An adversary that
takes the model's probabilities as its prior still prefers the likeliest of T; ε bounds by how much.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from cloister.obfuscation.gqs import Candidate, Quantization, Value
from cloister.obfuscation.index import Prf

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
    """Blocks of `size` or a little more; fewer, larger ones where common words would leave more members without."""
    said = [words(one.values) for one in run]
    most = max(1, len(run) // size)
    cuts = [_cut(run, said, count) for count in range(most, 0, -1)]
    return max(cuts, key=lambda blocks: sum(len(block) for block in blocks if len(block) >= size))


def _cut(run: Block, said: Sequence[frozenset[str]], count: int) -> list[Block]:
    """A member goes into the first block with room and no word of its values; one that fits none is in none."""
    rooms = [len(run) // count + (at < len(run) % count) for at in range(count)]
    blocks: list[Block] = [[] for _ in rooms]
    taken: list[set[str]] = [set() for _ in rooms]
    for one, words in zip(run, said, strict=True):
        fits = (at for at, room in enumerate(rooms) if len(blocks[at]) < room and not words & taken[at])
        if (at := next(fits, None)) is not None:
            blocks[at].append(one)
            taken[at] |= words
    return blocks


def block_with(
    secret: tuple[Value, ...], members: Iterable[Candidate], by: Quantization, size: int, words: Words
) -> Block:
    """Empty if no block holds the secret."""
    run = _with(secret, runs_of(members, by))
    return _with(secret, blocks_of(run, size, words))


def drawn(secret: tuple[Value, ...], block: Block, count: int, prf: Prf, context: bytes) -> list[Candidate]:
    """`count` of the other members of the block, or all where it has no more, in a drawn order."""
    others = [one for one in block if one.values != secret]
    return prf.order(b"substitutes\0" + context, len(others)).shuffled(others)[:count]


def _with(secret: tuple[Value, ...], blocks: Iterable[Block]) -> Block:
    found: Iterator[Block] = (block for block in blocks if any(one.values == secret for one in block))
    return next(found, [])
