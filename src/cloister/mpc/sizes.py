"""How many bytes a share has, for whoever checks before it has an engine. Knows no SPU."""

from __future__ import annotations

import math

from cloister.messages.mpc import ShareHead
from cloister.mpc.config import Protocol

_BYTES: dict[Protocol, int] = {"aby3": 16, "cheetah": 8, "semi2k": 8}
"""Per secret: ring elements of 64 bits, two of the three for each party of ABY3's replicated sharing."""


def share_bytes(head: ShareHead, protocol: Protocol) -> int:
    """One party's share of an arithmetic secret."""
    return math.prod(head.dims) * _BYTES[protocol]
