"""Which of C shuffled numbers meet whom, so that the k largest are known after two rounds. Public arithmetic alone.

Numbers meet in groups first, each everyone in its group. Then the i-th of one group needs to meet the j-th of another
(from 0) only where i + j < k: beyond, whoever wins, the loser has k better ones in these two groups already, which both
groups' earlier meetings tell. Numbers among the first k lose only meetings that are held, so their ranks are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int32]
Pairs = list[tuple[int, int]]

MOST = 16
"""Groups tried."""

LARGEST_TABLE = 2**19
"""Elements of a round's public matrix, which is part of the program."""


@dataclass(frozen=True)
class Round:
    """Pairs of P numbers that meet at once."""

    players: int
    pairs: Pairs

    @property
    def differences(self) -> Integers:
        """(P, pairs): one's number less the other's."""
        columns = np.zeros((self.players, len(self.pairs)), np.int32)
        for pair, (one, other) in enumerate(self.pairs):
            columns[one, pair], columns[other, pair] = 1, -1
        return columns

    @property
    def losses(self) -> tuple[Integers, Integers]:
        """(pairs, P) and (P,): what each pair's bit (one is larger) adds to everyone's lost meetings, and a start."""
        columns = -self.differences.T
        return columns, (columns < 0).sum(axis=0).astype(np.int32)


@dataclass(frozen=True)
class Groups:
    """C numbers in `count` groups of adjacent ones, as equal as can be; `wanted` of the numbers are to be found."""

    numbers: int
    count: int
    wanted: int

    @property
    def sizes(self) -> list[int]:
        small, larger = divmod(self.numbers, self.count)
        return [small + (group < larger) for group in range(self.count)]

    @property
    def members(self) -> list[range]:
        ends = np.cumsum([0, *self.sizes]).tolist()
        return [range(start, end) for start, end in pairwise(ends)]

    @property
    def own(self) -> Integers:
        """(C,): everyone's group."""
        return np.repeat(np.arange(self.count, dtype=np.int32), self.sizes)

    @property
    def candidates(self) -> list[tuple[int, int]]:
        """(group, place in it) of those that may be among the wanted."""
        return [(group, place) for group, size in enumerate(self.sizes) for place in range(min(size, self.wanted))]

    @property
    def first(self) -> Round:
        return Round(self.numbers, [pair for members in self.members for pair in combinations(members, 2)])

    @property
    def second(self) -> Round:
        every = self.candidates
        pairs = [
            (one, other)
            for (one, (group, place)), (other, (another, beside)) in combinations(enumerate(every), 2)
            if group != another and place + beside < self.wanted
        ]
        return Round(len(every), pairs)


def groups_for(numbers: int, wanted: int) -> Groups | None:
    """The groups with the fewest meetings; None where one round of all is better, as a round is nine messages."""
    every = [Groups(numbers, count, wanted) for count in range(2, min(numbers // 2, MOST) + 1)]
    worth = [groups for groups in every if 4 * _meetings(groups) <= numbers * (numbers - 1)]
    small = [groups for groups in worth if numbers * len(groups.first.pairs) <= LARGEST_TABLE]
    return min(small, key=_meetings, default=None)


def _meetings(groups: Groups) -> int:
    return len(groups.first.pairs) + len(groups.second.pairs)
