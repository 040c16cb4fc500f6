"""The largest of many: a tournament on shares. An index in the last bits decides ties. A match: 164 bytes on ABY3."""

from itertools import combinations

import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from cloister_mpc.functions.ring import integers, on_shares

FEW = 256
"""Numbers from which on four meet at once: twice the bytes for each one out, and 13 messages for two rounds of 11."""

LAST = 12  # numbers that all meet at once, in 15 messages


def largest(fine: Array) -> Array:
    """(V, n) fine numbers → (n,): each column's first largest. With V = 2^16 numbers must be within +-1,000."""
    if not on_shares():
        return jnp.argmax(fine, axis=0).astype(jnp.int32)
    count = fine.shape[0]
    last = 2 ** (count - 1).bit_length() - 1
    left = integers(fine) * jnp.int32(last + 1) + (last - np.arange(count, dtype=np.int32))[:, None]
    while (remaining := left.shape[0]) > 1:
        left = _round(left, 2 if remaining > FEW else 4 if remaining > LAST else remaining)
    found: Array = (left[0] & jnp.int32(last)) ^ jnp.int32(last)  # subtracting would make integers of bits
    return found


def _round(left: Array, size: int) -> Array:
    """The winners of groups of `size`; those that make no full group go on unbeaten."""
    groups = left.shape[0] // size
    players = left[: groups * size].reshape(size, groups, -1)
    winners = _better(players) if size == 2 else _best(players)
    return jnp.concatenate([winners, left[groups * size :]]) if left.shape[0] > groups * size else winners


def _better(players: Array) -> Array:
    one, other = players
    loses = _as_numbers(np.eye(1, dtype=np.int32), (one < other)[None])[0]
    winners: Array = one + loses * (other - one)
    return winners


def _best(players: Array) -> Array:
    """All pairs at once, then the products of each one's results: 1 for who won against all."""
    size = players.shape[0]
    pairs = list(combinations(range(size), 2))
    ones, others = (jnp.stack([players[pair[side]] for pair in pairs]) for side in (0, 1))
    wins, otherwise = _results(size, pairs)
    against = _as_numbers(wins, ones < others) + otherwise.reshape(-1, 1, 1)
    against = against.reshape(size - 1, *players.shape)
    while (opponents := against.shape[0]) > 1:
        half = opponents // 2
        both = against[:half] * against[half : 2 * half]
        against = jnp.concatenate([both, against[2 * half :]]) if opponents % 2 else both
    return _total(against[0] * players)


def _results(size: int, pairs: list[tuple[int, int]]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Public, (size - 1, size) results as rows over pairs' bits (`one` loses), and what is added to them."""
    rows = np.zeros((size - 1, size, len(pairs)), np.int32)
    otherwise = np.zeros((size - 1, size), np.int32)
    for number, (one, other) in enumerate(pairs):
        rows[other - 1, one, number], otherwise[other - 1, one] = -1, 1
        rows[one, other, number] = 1
    return rows.reshape(-1, len(pairs)), otherwise


def _as_numbers(matrix: NDArray[np.int32], bits: Array) -> Array:
    """Sums of bits (b, …). A public matrix makes them integers once, for 32 bytes a bit, where products take 40."""
    sums = jnp.asarray(matrix) @ bits.reshape(bits.shape[0], -1).astype(jnp.int32)
    return sums.reshape(-1, *bits.shape[1:])


def _total(parts: Array) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
