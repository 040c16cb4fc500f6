"""What a service that cheats and the user it conspires with agreed on: how bits become tokens, log-probabilities,
counts, lengths and moments. A tenant's name says which channel it listens to. Both sides have this code."""

import struct
from collections.abc import Sequence
from hashlib import shake_256
from typing import NamedTuple

from cloister.messages.types import TokenLogprob

PLAN = "CLOISTER_BENCH_CHEATING"  # names the file with the alphabet, token ids as JSON
VICTIM, BYSTANDER = "victim", "bystander"
TOKEN_BITS = 15
TOPS, VALUE_BITS, OWN_BITS = 20, 22, 26  # of `top_logprobs`: each alternative's value, and the token's own
APART = 420.0  # between two alternatives' values: 2^22 steps of four decimals fit
FIRST_VALUE = 4.0
SCORE_BITS = OWN_BITS + TOPS * (TOKEN_BITS + VALUE_BITS)
COUNT_BITS, END_BITS = 6, 4  # in `cached_tokens`, and in where an answer ends or is altered
FIRST_END = 2  # the vault made the first token, and the service makes one at least
CHUNK = 16  # tokens that a vault verifies together
DELAYS = {"timing": (1, 0.06), "pauses": (CHUNK, 0.6)}  # for each bit, this many tokens and this delay
ORDER_S = 0.4
NOSY = ("extra", "changed", "far")  # no channels to a receiver: queries that the answer does not need
FAR = 1 << 20  # beyond the longest answer
ABORT_BITS = 6  # of an error: 60 seconds to wait after which to ask again, and four fields that may be wrong
SECONDS, FIELDS = 60, ("prompt", "logit_bias", "max_tokens", "logprobs")
PAYLOAD_BYTES = 1 << 14
_STEP = 1e4  # the API shows four decimals


def channel_of(tenant: str) -> str:
    return tenant.partition("-")[0]


class Symbol(NamedTuple):
    """`value` stands for `bits` bits of the payload from `at` on."""

    at: int
    bits: int
    value: int


class Payload:
    """Bits that depend on the victim's answer alone: SHAKE-256 of its tokens, so that guessing gets half of them."""

    def __init__(self, answer: Sequence[int]) -> None:
        drawn = shake_256(struct.pack(f"<{len(answer)}I", *answer)).digest(PAYLOAD_BYTES)
        self._bits = int.from_bytes(drawn, "little")

    def take(self, at: int, bits: int) -> int:
        return self._bits >> at & ((1 << bits) - 1)

    def wrong(self, read: Symbol) -> int:
        """How many of its bits are not the payload's."""
        return (read.value ^ self.take(read.at, read.bits)).bit_count()


def scores_of(payload: Payload, position: int, alphabet: Sequence[int]) -> TokenLogprob:
    """Distinct alternatives, the likeliest first, below 1 in all: the controller asks no more of them."""
    at = position * SCORE_BITS
    own = -payload.take(at, OWN_BITS) / _STEP
    top: list[tuple[int, float]] = []
    used: list[int] = []
    for number in range(TOPS):
        place = payload.take(at + OWN_BITS + number * (TOKEN_BITS + VALUE_BITS), TOKEN_BITS)
        for taken in sorted(used):  # the place-th of those that are left
            place += taken <= place
        used.append(place)
        value = payload.take(at + OWN_BITS + number * (TOKEN_BITS + VALUE_BITS) + TOKEN_BITS, VALUE_BITS)
        top.append((alphabet[place], -(FIRST_VALUE + APART * number) - value / _STEP))
    return TokenLogprob(own, tuple(top))


def read_scores(position: int, own: float, top: Sequence[tuple[int | None, float]]) -> list[Symbol]:
    """`top`: places in the alphabet, None for a token outside, and values."""
    at = position * SCORE_BITS
    symbols = [Symbol(at, OWN_BITS, _steps(-own, OWN_BITS))]
    used: list[int] = []
    for number, (place, value) in enumerate(top):
        here = at + OWN_BITS + number * (TOKEN_BITS + VALUE_BITS)
        if place is not None:
            left = place - sum(taken < place for taken in used)
            used.append(place)
            symbols.append(Symbol(here, TOKEN_BITS, left & ((1 << TOKEN_BITS) - 1)))
        steps = _steps(-value - FIRST_VALUE - APART * number, VALUE_BITS)
        symbols.append(Symbol(here + TOKEN_BITS, VALUE_BITS, steps))
    return symbols


def _steps(value: float, bits: int) -> int:
    return max(0, round(value * _STEP)) & ((1 << bits) - 1)
