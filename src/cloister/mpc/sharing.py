"""Numbers into shares and back, for whoever deals them (client, provider) and for public values of parties.

Knows what a client deals for its tokens and how it draws permutations. Knows no model's weights and no program.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from spu import Io, libspu

from cloister.mpc.shape import FINE, ModelShape

Protocol = Literal["aby3", "semi2k", "cheetah"]
FRACTION_BITS = 18

_KINDS = {
    "aby3": libspu.ProtocolKind.ABY3,
    "semi2k": libspu.ProtocolKind.SEMI2K,
    "cheetah": libspu.ProtocolKind.CHEETAH,
}
PARTIES = {"aby3": 3, "semi2k": 2, "cheetah": 2}


def runtime_config(protocol: Protocol = "aby3") -> libspu.RuntimeConfig:
    """The numbers' format and the protocol; all parties and dealers must agree on it."""
    return libspu.RuntimeConfig(protocol=_KINDS[protocol], field=libspu.FieldType.FM64, fxp_fraction_bits=FRACTION_BITS)


class Dealer:
    """Splits arrays into shares, one for each party, and puts results together again."""

    def __init__(self, protocol: Protocol = "aby3") -> None:
        self.parties = PARTIES[protocol]
        self._io = Io(self.parties, runtime_config(protocol))

    def deal(self, values: NDArray[np.generic]) -> list[libspu.Share]:
        """Fresh secret shares: integers stay integers, floats become fixed point."""
        shares: list[libspu.Share] = self._io.make_shares(_dense(values), libspu.Visibility.VIS_SECRET)
        return shares

    def publish(self, values: NDArray[np.generic]) -> libspu.Share:
        """A public value as any party sets it for itself: the same for all of them."""
        return self._io.make_shares(_dense(values), libspu.Visibility.VIS_PUBLIC)[0]

    def join(self, shares: Sequence[libspu.Share]) -> NDArray[np.generic]:
        values: NDArray[np.generic] = self._io.reconstruct(list(shares))
        return values


def one_hots(shape: ModelShape, tokens: Sequence[int], columns: int, first: int = 0) -> dict[str, NDArray[np.int32]]:
    """What a client deals for its tokens, padded on the left to `columns`; `first` is the first token's position."""
    coarse = np.zeros((shape.coarse, columns), dtype=np.int32)
    fine = np.zeros((FINE, columns), dtype=np.int32)
    at = np.arange(columns - len(tokens), columns)
    numbers = np.asarray(tokens)
    coarse[numbers // FINE, at] = 1
    fine[numbers % FINE, at] = 1
    dealt = {"coarse": coarse, "fine": fine}
    if shape.positions:
        places = np.zeros((shape.positions, columns), dtype=np.int32)
        places[first + np.arange(len(tokens)), at] = 1
        dealt["places"] = places
    return dealt


def permutations(heads: int, size: int) -> NDArray[np.int32]:
    """(heads, size, size) permutation matrices, each drawn alone from the system's randomness."""
    draws = np.frombuffer(secrets.token_bytes(heads * size * 8), dtype=np.uint64).reshape(heads, size)
    rows: NDArray[np.int32] = (np.argsort(draws, axis=1)[:, :, None] == np.arange(size)).astype(np.int32)
    return rows


def _dense(values: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(values).reshape(values.shape)  # which would turn a single number into a row
