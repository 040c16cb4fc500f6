"""Which of λ+1 is real: a pseudorandom function of a secret that only the user's machine and a vault have (§3.2, §5.3).
HMAC-SHA256 under a key derived by HKDF (RFC 5869). Each request has its own `context`: orders are independent."""

import hashlib
import hmac
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

SECRET_BYTES = 32
_SALT = b"cloister obfuscation index v1"
REQUEST = b"request"  # for a secret of one request alone, as at the level `obfuscated`

Item = TypeVar("Item")


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


@dataclass(frozen=True, slots=True, repr=False)
class Order:
    """`places[k]` is the variant that goes k-th; variant 0 is the real one."""

    places: tuple[int, ...]

    @property
    def authentic(self) -> int:
        return self.places.index(0)

    def shuffled(self, variants: Sequence[Item]) -> list[Item]:
        return [variants[variant] for variant in self.places]

    def winnow(self, answers: Sequence[Item]) -> Item:
        if len(answers) != len(self.places):
            raise ValueError("there are as many answers as variants")
        return answers[self.authentic]


class Prf:
    """The same secret and context draw the same."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES:
            raise ValueError(f"the secret of an index has at least {SECRET_BYTES} bytes")
        self._key = hmac.digest(_SALT, secret, "sha256")  # HKDF-Extract

    def order(self, context: bytes, count: int) -> Order:
        """Fisher and Yates with unbiased draws."""
        places, draws = list(range(count)), self._words(b"order", context)
        for last in range(count - 1, 0, -1):
            chosen = _below(last + 1, draws)
            places[last], places[chosen] = places[chosen], places[last]
        return Order(tuple(places))

    def uniforms(self, context: bytes) -> Iterator[float]:
        """In [0, 1), endless."""
        return (word / 2**64 for word in self._words(b"uniform", context))

    def secret(self, context: bytes) -> bytes:
        return hmac.digest(self._key, b"secret\0" + hashlib.sha256(context).digest() + b"\1", "sha256")

    def _words(self, use: bytes, context: bytes) -> Iterator[int]:
        info = use + b"\0" + hashlib.sha256(context).digest()
        seed = hmac.digest(self._key, info + b"\1", "sha256")  # HKDF-Expand, one block
        counter = 0
        while True:
            block = hmac.digest(seed, counter.to_bytes(8, "big"), "sha256")
            yield from (int.from_bytes(block[at : at + 8], "big") for at in range(0, len(block), 8))
            counter += 1


def _below(limit: int, words: Iterator[int]) -> int:
    """Words above the largest multiple of `limit` are left out, or low numbers would come a little more often."""
    end = 2**64 // limit * limit
    return next(word for word in words if word < end) % limit


class Positions:
    """How far λ+1 streams may be read: position p once every stream has one, or has ended. Else a server that stops
    streams at different times would learn from the reader's next step which one is real."""

    def __init__(self, streams: int) -> None:
        self._reached: list[float] = [0] * streams

    def advance(self, stream: int, by: int = 1) -> None:
        self._reached[stream] += by

    def end(self, stream: int) -> None:
        self._reached[stream] = math.inf

    @property
    def readable(self) -> float:
        """Infinite once all streams have ended."""
        return min(self._reached)
