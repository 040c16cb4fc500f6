"""The best k of C secret numbers as one-hot rows, without Algorithm 2's sorting: compared in a secret random order,
openly. Ranks of different numbers are then uniformly random; none may be equal (`without_ties`)."""

from dataclasses import dataclass
from itertools import combinations, pairwise

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.cache.attention import headwise
from cloister_mpc.functions.ring import integers, on_shares, reveal

Integers = NDArray[np.int32]
Pairs = list[tuple[int, int]]

MOST = 16  # most groups that are tried

LARGEST_TABLE = 2**19  # elements of a round's public matrix, which is part of the program


@dataclass(frozen=True)
class Round:
    """Pairs of P numbers that meet at once."""

    players: int
    pairs: Pairs

    @property
    def differences(self) -> Integers:
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
    """Round 1: all of a group meet. Round 2: i-th and another group's j-th only where i + j < k, else the loser has k
    better. So the first k lose held meetings only: exact ranks."""

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
    """The groups with the fewest meetings; None where one round of all is better: a round is nine messages."""
    every = [Groups(numbers, count, wanted) for count in range(2, min(numbers // 2, MOST) + 1)]
    worth = [groups for groups in every if 4 * _meetings(groups) <= numbers * (numbers - 1)]
    small = [groups for groups in worth if numbers * len(groups.first.pairs) <= LARGEST_TABLE]
    return min(small, key=_meetings, default=None)


def _meetings(groups: Groups) -> int:
    return len(groups.first.pairs) + len(groups.second.pairs)


SMALLEST_STEP = 2.0**-18  # the unit of the fixed-point numbers that shares hold


def shuffled_rows(numbers: Array, shuffle: Array, k: int) -> Array:
    """(G, C) numbers, (G, C, C) permutations → (G, k, C): rows of the k largest, largest first."""
    shuffled = headwise(shuffle, without_ties(numbers)[..., None])[..., 0]
    return jnp.matmul(largest_first(shuffled, k), shuffle)  # public by secret integers: nothing is sent


def in_order(rows: Array, shuffle: Array) -> Array:
    """One-hot rows (G, k, C) in the order of what they name, by a second shuffle (G, k, k)."""
    positions = jnp.sum(rows * np.arange(rows.shape[-1], dtype=np.int32), axis=-1, keepdims=True)
    shuffled = headwise(shuffle, jnp.concatenate([positions, rows], axis=-1))
    # Positions differ from each other, so what is revealed of their order is as random as that of the choice.
    return jnp.matmul(largest_first(-shuffled[..., 0], rows.shape[1]), shuffled[..., 1:])


def largest_first(numbers: Array, k: int) -> Array:
    """(G, C) different numbers → (G, k, C) one-hot rows, *public*: the numbers must come in a secret random order."""
    count = numbers.shape[-1]
    if not on_shares():
        return (jnp.argsort(-numbers, axis=-1)[:, :k, None] == jnp.arange(count)).astype(jnp.int32)
    groups = groups_for(count, k)
    if groups is None:
        return _at_places(_ranked(reveal(_larger(numbers)), count), k)
    elements = integers(numbers) if jnp.issubdtype(numbers.dtype, jnp.floating) else numbers
    lost = _lost(elements, groups.first)
    whose, place = (np.array(column) for column in zip(*groups.candidates, strict=True))
    rows = (lost[:, None, :] == place[:, None]).astype(jnp.int32) * (groups.own == whose[:, None]).astype(np.int32)
    candidates = jnp.matmul(rows, elements[..., None])[..., 0]
    return jnp.matmul(_at_places(_lost(candidates, groups.second) + place, k), rows)


def _lost(elements: Array, meetings: Round) -> Array:
    """(G, P) integers → (G, P), public: how many meetings each one lost."""
    larger = reveal(jnp.matmul(elements, meetings.differences) > 0).astype(jnp.int32)
    pairs, start = meetings.losses
    return jnp.matmul(larger, pairs) + start


def _at_places(ranked: Array, k: int) -> Array:
    """(G, C) public ranks → (G, k, C): the rows of ranks 0 to k - 1."""
    return (ranked[:, None, :] == np.arange(k)[:, None]).astype(jnp.int32)


def _larger(numbers: Array) -> Array:
    """(G, C // 2, C): in row r - 1, whether numbers are larger than those r places on."""
    return numbers[:, None, :] > _shifted(numbers, numbers.shape[-1] // 2)


def _ranked(larger: Array, count: int) -> Array:
    losses = 1 - larger.astype(jnp.int32)
    lost = jnp.sum(losses, axis=1)
    half = count // 2
    pairs = half if count % 2 else half - 1  # of an even number, those half-way round are met from both sides
    if pairs:
        lost = lost + pairs - jnp.sum(_shifted_back(losses[:, :pairs]), axis=1)
    return lost


def _shifted(numbers: Array, shifts: int) -> Array:
    """(G, C) → (G, shifts, C), row r - 1 starting r places later, round the end: cutting shares is free."""
    groups, count = numbers.shape
    repeated = jnp.tile(numbers, (1, shifts + 3))[:, : (shifts + 1) * (count + 1)]
    return repeated.reshape(groups, shifts + 1, count + 1)[:, 1:, :count]


def _shifted_back(rows: Array) -> Array:
    """(G, shifts, C) with row r - 1 starting r places earlier: what `_shifted` did, undone."""
    groups, shifts, count = rows.shape
    flat = jnp.concatenate([rows, rows], axis=2).reshape(groups, -1)
    ahead = jnp.concatenate([flat, flat], axis=1)[:, count - 1 : count - 1 + shifts * (2 * count - 1)]
    return ahead.reshape(groups, shifts, 2 * count - 1)[:, :, :count]


def without_ties(numbers: Array) -> Array:
    """On shares: the same order, no two equal: scaled by a power of two above their count, then set apart."""
    if not on_shares():
        return numbers
    count = numbers.shape[-1]
    for _ in range(count.bit_length()):
        numbers = numbers + numbers
    return numbers + np.arange(count, 0, -1, dtype=np.float32) * SMALLEST_STEP
