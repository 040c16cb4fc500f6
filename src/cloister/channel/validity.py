"""How long a sealed request may be on its way. The client reckons by the *node's* clock, from its evidence: the time
this took to arrive shortens the validity. Both clocks may run apart by CLOCKS_MAY_DIFFER_S between two
verifications."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cloister.errors import MessageExpired

VALID_S = 15  # Of a small request: connecting and waiting in a busy gateway are within it.
BYTES_PER_S = 1 << 17  # A large one has a second more for each of these: slow lines need them.
MOST_VALID_S = 120  # A node takes no request that claims to be good for longer.
CLOCKS_MAY_DIFFER_S = 2

_LATEST_MS = 1 << 53


class Validity(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Milliseconds since 1970 by the node's clock, and a span. The default has long expired."""

    sealed_ms: Annotated[int, Meta(ge=0, lt=_LATEST_MS)] = 0
    for_ms: Annotated[int, Meta(ge=0, lt=_LATEST_MS)] = 0

    @classmethod
    def beginning(cls, now_ms: int, size: int) -> Validity:
        return cls(now_ms, 1000 * min(VALID_S + size // BYTES_PER_S, MOST_VALID_S))

    def check(self, now_ms: int) -> None:
        age_s, span_s = (now_ms - self.sealed_ms) / 1000, min(self.for_ms / 1000, MOST_VALID_S)
        if age_s > span_s + CLOCKS_MAY_DIFFER_S:
            raise MessageExpired(
                "The sealed request is too old to be served.",
                hint="It was held back on its way, or the node's clock changed: verify the node and seal it again.",
            )
        if age_s < -CLOCKS_MAY_DIFFER_S:
            raise MessageExpired(
                "The sealed request is not valid yet.",
                hint="The node's clock was set back: verify it and seal the request again.",
            )
